"""A folder in this node's shared memory for each of its jobs, where training processes keep batches that they have prepared.

It outlives the processes, which is its use, and goes with the job. Whoever ends the node for good gives the rest back, with the memory of its tier.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path


class Prefetch:
    """``home`` is the node's alone; None where there is no shared memory to be had: then nothing is kept."""

    def __init__(self, home: Path | None) -> None:
        self._home = home

    def folder(self, job: str) -> Path | None:
        if self._home is None:
            return None
        folder = self._home / job
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return None
        return folder

    def forget(self, job: str) -> None:
        """With the last job the folder of them all goes too."""
        if self._home is None:
            return
        shutil.rmtree(self._home / job, ignore_errors=True)
        if self._home.is_dir() and not any(self._home.iterdir()):
            self.end()

    def sweep(self, jobs: Collection[str]) -> None:
        """``jobs`` are those that have processes on this node."""
        if self._home is not None and self._home.is_dir():
            for folder in [path for path in self._home.iterdir() if path.name not in jobs]:
                self.forget(folder.name)

    def end(self) -> None:
        """Nothing of any job is to run on this node."""
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
