"""The tmpfs of its own that a memory tier has where the node allows one: with huge pages, the largest lever on copying and mapping; and with a size."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from agent.memory_tier.segments import HUGE_PAGE_BYTES, PAGE_BYTES

_FOR_SEALS_BYTES = 64 << 20
"""Seals and folders take pages too; they are not to fail for the last segment."""
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Ground:
    """Where segments lie. ``granule`` is what their sizes are multiples of; ``note`` says why it is not what was wished."""

    granule: int
    note: str | None = None


def prepare(folder: Path, *, nbytes: int, is_mounting: bool) -> Ground:
    """Makes the folder, and the mount if one is wished and allowed; else the folder lies in the memory of whatever is mounted above it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = _mount(folder, nbytes) if is_mounting else None
    return Ground(HUGE_PAGE_BYTES if _has_huge_pages(folder) else PAGE_BYTES, note)


def resize(folder: Path, *, nbytes: int) -> str | None:
    """Gives an own mount another size. Words on why not; a smaller one is refused by the kernel while more than that is in use."""
    if not folder.is_mount():
        return None
    return _run("mount", "-o", f"remount,size={nbytes + _FOR_SEALS_BYTES}", str(folder))


def give_back(folder: Path) -> None:
    """Ends an own mount; what others have still mapped of it stays theirs until they end."""
    if folder.is_mount():
        _run("umount", "--lazy", str(folder))


def _mount(folder: Path, nbytes: int) -> str | None:
    if folder.is_mount():
        return resize(folder, nbytes=nbytes)
    options = f"huge=always,size={nbytes + _FOR_SEALS_BYTES},mode=0700"
    why = _run("mount", "-t", "tmpfs", "-o", options, "everstep", str(folder))
    return f"the memory tier has no mount with huge pages of its own and lies in {folder.parent}: {why}" if why else None


def _run(*command: str) -> str | None:
    """None when it went well."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return None if done.returncode == 0 else done.stderr.strip() or f"{command[0]} ended with {done.returncode}"


def _has_huge_pages(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    for line in mounts.read_text().splitlines():
        words = line.split()
        if words[1] == str(folder):
            return any(option in words[3].split(",") for option in ("huge=always", "huge=within_size"))
    return False
