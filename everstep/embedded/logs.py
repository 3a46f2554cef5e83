"""One log a service under ``<home>/logs``, turned over by size when the service starts."""

from pathlib import Path
from typing import IO

_LARGEST_BYTES = 8 << 20
_KEPT = 3


def open_log(directory: Path, name: str, largest_bytes: int = _LARGEST_BYTES) -> IO[bytes]:
    """Opens ``NAME.log`` to append. A large one becomes ``NAME.log.1`` first, and so on up to ``NAME.log.3``."""
    log = directory / f"{name}.log"
    if log.exists() and log.stat().st_size > largest_bytes:
        for number in range(_KEPT - 1, 0, -1):
            older = directory / f"{name}.log.{number}"
            if older.exists():
                older.replace(directory / f"{name}.log.{number + 1}")
        log.replace(directory / f"{name}.log.1")
    log.touch(mode=0o600)
    return log.open("ab")


def tail(log: Path, lines: int = 15) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
