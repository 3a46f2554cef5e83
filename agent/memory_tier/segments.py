"""Segments: files of shared memory that hold one shard each, prefaulted, mapped once, and reused for ever by being renamed.

A mapping follows the inode, so a segment that goes from ``spare/<id>`` to a step and back costs no page and no page table, here and in every
training process that has mapped it. Its first page holds the stamp of what it holds; there is none while bytes change.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from agent.memory_tier.budget import NoRoom, in_mib
from everstep.shards import STAMP_BYTES

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python has no name for it before 3.13
_AT_ONCE_BYTES = 16 << 20
"""madvise keeps the interpreter's lock: pages are asked for in bites, so that the other threads stay alive."""

_POLL_S = 0.005


@dataclass(eq=False)
class Segment:
    """``capacity`` is what it can hold besides its stamp, in bytes. ``claim`` is the (namespace, index) that it was reserved for."""

    id: str
    path: Path
    capacity: int
    claim: tuple[str, int] | None = None
    readers: int = 0
    _mapped: mmap.mmap | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return self.capacity + STAMP_BYTES

    @property
    def body(self) -> memoryview:
        """All of its capacity, writable. Raises OSError."""
        return memoryview(self._map())[STAMP_BYTES:]

    @property
    def stamp(self) -> str:
        """Empty while it is open. Raises OSError."""
        return bytes(self._map()[:STAMP_BYTES]).rstrip(b"\0").decode("ascii", errors="replace")

    def write_stamp(self, stamp: str) -> None:
        """Raises OSError."""
        page = stamp.encode("ascii").ljust(STAMP_BYTES, b"\0")
        self._map()[:STAMP_BYTES] = page

    def open_descriptor(self, *, is_writable: bool) -> int:
        """An open file of its own, so that a lock on it is nobody else's. Raises OSError."""
        return os.open(self.path, (os.O_RDWR if is_writable else os.O_RDONLY) | os.O_CLOEXEC)

    def is_whole(self) -> bool:
        """Whether its file is there and has its length: somebody may have deleted it, or cut it off, under this process."""
        try:
            return self.path.stat().st_size == self.nbytes
        except OSError:
            return False

    def is_leased(self) -> bool:
        """Whether anybody reads it or writes it: another process by its lock, this one by its count."""
        if self.readers:
            return True
        try:
            descriptor = self.open_descriptor(is_writable=True)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def move(self, path: Path) -> None:
        """Raises OSError."""
        self.path.rename(path)
        self.path = path

    def populate(self) -> None:
        """Gives this process its page tables now. A kernel that cannot is asked for each page at its first use instead."""
        mapped = self._map()
        for start in range(0, self.nbytes, _AT_ONCE_BYTES):
            try:
                mapped.madvise(_POPULATE_WRITE, start, min(_AT_ONCE_BYTES, self.nbytes - start))
            except OSError:
                return

    def _map(self) -> mmap.mmap:
        if self._mapped is None:
            descriptor = self.open_descriptor(is_writable=True)
            try:
                if os.fstat(descriptor).st_size != self.nbytes:
                    message = f"{self.path} is not {self.nbytes} bytes long any more"
                    raise OSError(message)
                self._mapped = mmap.mmap(descriptor, self.nbytes)
            finally:
                os.close(descriptor)
        return self._mapped


def size_for(nbytes: int, *, granule: int) -> int:
    """How long a segment is that can hold ``nbytes``, stamp included."""
    return -(-(nbytes + STAMP_BYTES) // granule) * granule


def create(folder: Path, name: str, size: int) -> Segment:
    """A segment whose pages exist. Raises NoRoom where the file system has none; nothing is left then."""
    path = folder / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        message = (
            f"a segment of {in_mib(size)} is refused: {folder} says {error.strerror}; give it more room or lower the percentage"
        )
        raise NoRoom(message) from error
    finally:
        os.close(descriptor)
    return Segment(name, path, size - STAMP_BYTES)


def found(path: Path, name: str) -> Segment | None:
    """A segment that an earlier process left. None for a file that is none."""
    try:
        size = path.stat().st_size
    except OSError:
        return None
    if size < STAMP_BYTES or size % PAGE_BYTES or not name:
        return None
    return Segment(name, path, size - STAMP_BYTES)


def share(descriptor: int, *, patience_s: float) -> bool:
    """Takes a shared lock on an open file, once nobody holds an exclusive one. False: somebody still does."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True
