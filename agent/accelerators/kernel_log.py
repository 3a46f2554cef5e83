"""Follows the kernel's log: ``/dev/kmsg``, or a file that is written like it. Reads what is there, and never waits.

A place in the log names its line for good, so what follows from a line has the same name after the agent has been started again.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
_RECORD_BYTES = 65_536
_MOST_LINES = 20_000
"""One read returns at most this many: a flood must not keep the agent from its other duties."""
_MOST_LINE_BYTES = 65_536
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class Line:
    """``place`` is unique on this host; ``at`` in Unix seconds, None where the log does not say."""

    text: str
    place: str
    at: float | None = None


class LogSource(Protocol):
    """``place`` in the same words as ``Line.place``: what has been read up to there is not read again."""

    def read(self) -> list[Line]:
        """Lines since the last call. Raises OSError: it cannot be read at all."""
        ...

    def place(self) -> str: ...

    def close(self) -> None: ...


class Kmsg:
    """``/dev/kmsg``.

    ``boot`` names this start of the host, and ``started`` is when that was, in Unix seconds: records are stamped with microseconds since then.

    Records that the kernel has overwritten before they could be read are gone; it says so once, and reading goes on with the oldest.
    The first time in a boot it begins after what an operator has cleared (``dmesg --clear``), which says that it is settled.
    """

    def __init__(
        self,
        path: Path,
        after: str | None,
        *,
        boot: str,
        started: float,
        read: Callable[[int, int], bytes] = os.read,
        seek: Callable[[int, int, int], int] = os.lseek,
    ) -> None:
        of_boot, _, sequence = (after or "").rpartition(":")
        self._path = path
        self._boot = boot
        self._read_to = int(sequence) if of_boot == boot and sequence.isdigit() else -1
        self._started = started
        self._read_one = read
        self._seek = seek
        self._descriptor: int | None = None

    def read(self) -> list[Line]:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self._read_to < 0:
                with suppress(OSError):
                    self._seek(self._descriptor, 0, os.SEEK_DATA)  # of this device: after the last clearing
        lines = []
        for record in self._records(self._descriptor):
            line, sequence = _line_of(record, self._boot, self._started)
            if sequence is None:
                lines.append(line)
            elif sequence > self._read_to:
                self._read_to = sequence
                lines.append(line)
        return lines

    def place(self) -> str:
        return f"{self._boot}:{self._read_to}"

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _records(self, descriptor: int) -> Iterator[bytes]:
        for _ in range(_MOST_LINES):
            try:
                record = self._read_one(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                log.warning("the kernel's log was overwritten before it could be read; going on with its oldest record")
                continue
            if not record:
                return
            yield record


class File:
    """A file that grows, and may be rotated or cut off. A line counts when its end is there.

    ``after`` None: nothing of it has ever been read; then ``from_start`` says whether what is there already is of interest.
    """

    def __init__(self, path: Path, after: str | None, *, from_start: bool, may_be_missing: bool = False) -> None:
        self._may_be_missing = may_be_missing
        self._path = path
        self._inode, self._offset = _place_of(after)
        self._begin_at_end = after is None and not from_start
        self._descriptor: int | None = None

    def read(self) -> list[Line]:
        lines: list[Line] = []
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._begin_at_end = False  # whatever comes is new
            if self._may_be_missing:
                return lines
            raise
        if self._begin_at_end:
            self._begin_at_end = False
            self._inode, self._offset = status.st_ino, status.st_size
        if self._descriptor is not None and status.st_ino != self._inode:
            lines += self._rest()  # of the file that was rotated away
            self.close()
        if self._descriptor is None:
            self._open()
        return lines + self._rest()

    def place(self) -> str:
        return f"{self._inode}:{self._offset}"

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        inode = os.fstat(self._descriptor).st_ino
        if inode != self._inode:
            self._inode, self._offset = inode, 0

    def _rest(self) -> list[Line]:
        descriptor = self._descriptor
        if descriptor is None:
            return []
        if os.fstat(descriptor).st_size < self._offset:
            self._offset = 0  # cut off, and written anew
        lines: list[Line] = []
        while len(lines) < _MOST_LINES:
            chunk = os.pread(descriptor, _MOST_LINE_BYTES, self._offset)
            end = chunk.rfind(b"\n") + 1
            if not end and len(chunk) < _MOST_LINE_BYTES:
                return lines
            for text in _LINE.findall(chunk[: end or len(chunk)]):
                lines.append(Line(text.decode(errors="replace").rstrip("\r\n"), f"{self._inode}:{self._offset}"))
                self._offset += len(text)
        return lines


def _line_of(record: bytes, boot: str, started: float) -> tuple[Line, int | None]:
    """``priority,sequence,microseconds,flags;text``, and lines of context that begin with a space. What has another form is one text."""
    head, _, rest = record.partition(b";")
    fields = head.split(b",")
    try:
        sequence, since_start_s = int(fields[1]), int(fields[2]) / 1e6
    except (IndexError, ValueError):
        return Line(record.decode(errors="replace"), f"{boot}:unnumbered-{zlib.crc32(record):08x}"), None
    text = rest.split(b"\n", 1)[0].decode(errors="replace")
    return Line(text, f"{boot}:{sequence}", started + since_start_s), sequence


def _place_of(text: str | None) -> tuple[int, int]:
    inode, _, offset = (text or "").partition(":")
    return (int(inode), int(offset)) if inode.isdigit() and offset.isdigit() else (-1, 0)
