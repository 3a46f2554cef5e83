"""Small files that are kept one for each thing that was asked of the node, so that it is not done twice: how they are bounded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def keep_newest(folder: Path, most: int, *, may_go: Callable[[Path], bool] = lambda _: True) -> None:
    """Removes the oldest ``*.json`` beyond the newest ``most``, of those that may go. Raises OSError: the folder cannot be listed."""
    found: list[tuple[float, Path]] = []
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[most:]:
        if may_go(path):
            path.unlink(missing_ok=True)
