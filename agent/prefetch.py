"""A folder in this node's shared memory for each of its jobs, where training processes keep batches that they have prepared.

It outlives the processes, which is its use, and goes with the job. What is left of a node whose agent does not run any more is taken away by
another agent of the machine, when nothing has been written there for an hour: the agent may only be restarting, and its processes live on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108, it is meant to be shared memory; the folder in it is ours alone
_LEFT_AFTER_S = 3600.0
_LOCK = ".agent"


class Prefetch:
    """``state_dir`` tells the agents of one machine apart."""

    def __init__(self, state_dir: Path, root: Path = SHARED_MEMORY) -> None:
        name = hashlib.sha256(str(state_dir.absolute()).encode()).hexdigest()[:12]
        self._root = root
        self._pattern = f"everstep-prefetch-{os.getuid()}-*"
        self._home = root / self._pattern.replace("*", name)
        self._lock: int | None = None

    def folder(self, job: str) -> Path | None:
        """None where there is no shared memory to be had: then nothing is kept."""
        folder = self._home / job
        try:
            self._home.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return None
        if self._lock is None:
            with contextlib.suppress(OSError):  # one before us has not let go yet
                self._lock = _locked(self._home)
        return folder

    def forget(self, job: str) -> None:
        """With the last job the folder of them all goes too."""
        shutil.rmtree(self._home / job, ignore_errors=True)
        if self._home.is_dir() and {path.name for path in self._home.iterdir()} <= {_LOCK}:
            self.let_go()
            shutil.rmtree(self._home, ignore_errors=True)

    def let_go(self) -> None:
        """As the end of this process would."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def sweep(self, jobs: Collection[str], now: float) -> None:
        """``jobs`` are those that have processes on this node. ``now``: Unix seconds."""
        if self._home.is_dir():
            for folder in [path for path in self._home.iterdir() if path.name not in {*jobs, _LOCK}]:
                self.forget(folder.name)
        for home in self._root.glob(self._pattern):
            if home != self._home and now - _last_written(home) > _LEFT_AFTER_S and not _is_held(home):
                shutil.rmtree(home, ignore_errors=True)


def _locked(home: Path) -> int:
    descriptor = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_held(home: Path) -> bool:
    try:
        os.close(_locked(home))
    except OSError:
        return True
    return False


def _last_written(home: Path) -> float:
    times = [0.0]
    for path in [home, *home.glob("*"), *home.glob("*/*")]:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)
