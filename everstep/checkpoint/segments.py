"""Segments of the memory tier in this process's address space.

A mapping follows the file's inode, not its name, and making one costs several times what copying into it does. So a segment is mapped once and
kept; the tier says which of its segments it is. While this process writes into one it holds an exclusive lock on it, while it reads from one a
shared lock: the tier never uses a locked segment for something else, and the kernel frees the locks of the dead.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from everstep.errors import SaveRefused
from everstep.shards import STAMP_BYTES, Seal

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14; without it the first save pays for the pages


class Readable:
    """A segment that is mapped for reading, and stays so between leases: touching a new mapping's pages costs more than copying out of it.

    It is only read under a lease. The mapping holds no lock of its own, so that the tier may use the segment again; ``descriptor`` must hold none.
    """

    def __init__(self, descriptor: Descriptor, access: int = mmap.ACCESS_COPY) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor.number)
        self.file = (status.st_dev, status.st_ino)
        self.map = mmap.mmap(descriptor.number, status.st_size, access=access)

    @classmethod
    def of(cls, lent: Descriptor) -> Readable:
        """Of what a lease is held on. Raises OSError where it cannot be opened once more: the lease's own descriptor is locked."""
        return cls(Descriptor(os.open(f"/proc/self/fd/{lent.number}", os.O_RDONLY | os.O_CLOEXEC)))

    @property
    def is_deleted(self) -> bool:
        """The tier has given the file up; its pages are free once nobody has it mapped."""
        return os.fstat(self._descriptor.number).st_nlink == 0

    def let_go(self) -> bool:
        """Unmaps, unless it is in use."""
        try:
            self.map.close()
        except BufferError:
            return False
        self._descriptor.close()
        return True


class Mapped(Readable):
    """A segment that is mapped for writing, for as long as it is used by either side. ``views`` are laid over it, and go with it."""

    def __init__(self, descriptor: Descriptor) -> None:
        super().__init__(descriptor, mmap.ACCESS_WRITE)
        self.views: dict[Any, Any] = {}
        self._is_locked = False
        with suppress(OSError, ValueError):
            self.map.madvise(_POPULATE_WRITE)

    def body(self, nbytes: int) -> memoryview:
        return memoryview(self.map)[STAMP_BYTES : STAMP_BYTES + nbytes]

    def is_file(self, path: str) -> bool:
        """Whether the segment is still the file that is mapped. Where the tier's folder cannot be seen from here, the tier's word counts."""
        if not path:
            return True
        try:
            status = Path(path).stat()
        except OSError:
            return True
        return (status.st_dev, status.st_ino) == self.file

    def lock(self) -> None:
        """Raises SaveRefused if somebody still reads from the segment."""
        try:
            fcntl.flock(self._descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = "the memory tier handed over a segment that is still being read; the save was not begun, the next one can be"
            raise SaveRefused(message) from error
        self._is_locked = True

    def unlock(self) -> None:
        fcntl.flock(self._descriptor.number, fcntl.LOCK_UN)
        self._is_locked = False

    def let_go(self) -> bool:
        """Unmaps, unless it is in use."""
        if self._is_locked:
            return False
        self.views.clear()
        return super().let_go()


class Lease:
    """A shard of this node that is being read: it is not recycled before the lease is closed or, if mapped, its last view is gone.

    ``mapped`` is its file, mapped here already.
    """

    def __init__(self, seal: Seal, descriptor: Descriptor, mapped: Readable | None) -> None:
        self.seal = seal
        status = os.fstat(descriptor.number)
        if status.st_size < STAMP_BYTES + seal.size:
            descriptor.close()
            message = "the segment is shorter than its seal says"
            raise EOFError(message)
        self._descriptor = descriptor
        self._map = _LeasedMap.of(descriptor, STAMP_BYTES + seal.size) if mapped is None else mapped.map
        self._private: _LeasedMap | None = None
        self.view = memoryview(self._map)[STAMP_BYTES : STAMP_BYTES + seal.size]

    def private_view(self) -> memoryview:
        """For tensors that outlive this object: a write into one changes its copy of the page, never the checkpoint."""
        if self._private is None:
            self._private = _LeasedMap.of(self._descriptor, STAMP_BYTES + self.seal.size)
        return memoryview(self._private)[STAMP_BYTES:]

    def close(self) -> None:
        """Ends the lease, unless private views are left, which then hold it."""
        with suppress(BufferError):
            self.view.release()
        del self._map, self._private, self._descriptor


class Descriptor:
    """Closed with its last user: a lock belongs to the descriptor, so that it must live as long as the mapping."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1

    def __del__(self) -> None:
        self.close()


class _LeasedMap(mmap.mmap):
    """A private mapping that keeps its lease."""

    lease: Descriptor

    @classmethod
    def of(cls, descriptor: Descriptor, nbytes: int) -> _LeasedMap:
        made = cls(descriptor.number, nbytes, access=mmap.ACCESS_COPY)
        made.lease = descriptor
        return made
