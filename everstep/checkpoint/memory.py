"""The memory tier of this node, seen from a training process: the conversation over its Unix socket (``everstep.handover``)."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from everstep.checkpoint.segments import Descriptor, Lease, Mapped, Readable
from everstep.errors import NoTier, SaveRefused, TierAway
from everstep.handover import PROTOCOL_VERSION, Ask, Conversation
from everstep.shards import Seal, ShardKind, StepFound

_SLOWEST_ANSWER_S = 120.0
_UNMAPPING_S = (0.0, 0.2, 1.0, 5.0, 30.0)


class Memory:
    """Thread-safe. Every method raises TierAway when the tier cannot be reached, SaveRefused with the tier's words when it refuses."""

    def __init__(self, socket_path: str, namespace: str, token: str, *, slowest_answer_s: float = _SLOWEST_ANSWER_S) -> None:
        self._socket_path = socket_path
        self._hello = {"ask": Ask.HELLO.value, "namespace": namespace, "token": token, "protocol": PROTOCOL_VERSION}
        self._slowest_answer_s = slowest_answer_s
        self._idle: list[Line] = []
        self._mapped: dict[str, Mapped] = {}
        self._readable: dict[tuple[int, int], Readable] = {}
        self._lock = threading.Lock()
        self._watch: Line | None = None
        self._is_closed = threading.Event()

    @property
    def segments(self) -> tuple[str, ...]:
        """Those that are mapped in this process."""
        return tuple(self._mapped)

    @property
    def is_there(self) -> bool:
        """Whether this node has a tier now. One that has crashed leaves its socket's name behind, and is there: it is started again."""
        return Path(self._socket_path).exists()

    def status(self) -> Mapping[str, Any]:
        return self._ask({"ask": Ask.STATUS.value})

    def reserve(self, index: int, nbytes: int, count: int) -> int:
        """How many segments of that size stand ready. They are mapped and touched here, so that not even the first save pays for pages."""
        ready = int(self._ask({"ask": Ask.RESERVE.value, "index": index, "nbytes": nbytes, "count": count}).get("reserved", 0))
        held: list[MemoryShard] = []
        try:
            while len(held) < ready:  # all at once: one after the other would be the same one
                held += [self.open(index=index, step=0, save="", nbytes=nbytes, kind=ShardKind.DATA, is_durable=False)]
        except SaveRefused:
            ready = len(held)
        finally:
            for shard in held:
                shard.abandon()
                shard.release()
        return ready

    def open(self, *, index: int, step: int, save: str, nbytes: int, kind: ShardKind, is_durable: bool) -> MemoryShard:
        asked = {"ask": Ask.OPEN.value, "index": index, "step": step, "save": save, "nbytes": nbytes, "kind": kind.value}
        self._forget_deleted()
        line = self._line()
        told, descriptors = self.exchange(line, {**asked, "is_durable": is_durable, "mapped": list(self._mapped)})
        try:
            segment = str(told["segment"])
            mapped = self._map(segment, str(told.get("path", "")), descriptors)
            mapped.lock()
        except BaseException:
            line.close()  # which gives the segment back
            raise
        return MemoryShard(self, line, mapped, segment, nbytes)

    def lease(self, index: int, step: int, save: str) -> Lease | None:
        """A shard of this node for reading, None if it has none."""
        line = self._line()
        told, descriptors = self.exchange(line, {"ask": Ask.LEASE.value, "index": index, "step": step, "save": save})
        self.keep(line)
        if not descriptors:
            return None
        descriptor = Descriptor(descriptors[0])
        try:
            return Lease(Seal.from_wire(told["seal"]), descriptor, self._mapped_as(str(told.get("segment")), descriptor))
        except (KeyError, ValueError) as error:
            descriptor.close()
            message = f"the memory tier lends a shard in words that this library does not know: {error!r}"
            raise TierAway(message) from error

    def doubt(self, index: int, step: int, save: str) -> bool:
        """A shard of this node was found to be other bytes than its seal says: the tier looks, gives it up if so, and fetches it anew. Never raises."""
        with suppress(TierAway, SaveRefused):
            return bool(self._ask({"ask": Ask.CORRUPT.value, "index": index, "step": step, "save": save}).get("is_corrupt"))
        return False

    def find(self, step: int | None, limit: int) -> tuple[StepFound, ...]:
        told = self._ask({"ask": Ask.FIND.value, "step": step, "limit": limit})
        return tuple(StepFound.from_wire(one) for one in told.get("steps", ()))

    def discard(self, after: int) -> None:
        self._ask({"ask": Ask.DISCARD.value, "after": after})

    def wait(self, step: int, *, replicas: int, is_durable: bool, seconds: float) -> Mapping[str, Any]:
        """``replicas`` and ``is_durable`` as they are when both are reached or the time is over."""
        asked = {"ask": Ask.WAIT.value, "step": step, "replicas": replicas, "durable": is_durable, "seconds": seconds}
        return self._ask(asked, patience_s=seconds + self._slowest_answer_s)

    def close(self) -> None:
        self._is_closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
            if self._watch is not None:
                self._watch.hang_up()
        for line in idle:
            line.close()
        self.forget()

    def forget(self) -> None:
        """Unmaps what nobody uses: pages of a tier that is gone would stay taken for as long as this process has them mapped."""
        with self._lock:
            self._mapped = {name: mapped for name, mapped in self._mapped.items() if not mapped.let_go()}
            self._readable = {file: one for file, one in self._readable.items() if not one.let_go()}

    def _forget_deleted(self) -> None:
        with self._lock:
            self._mapped = {name: one for name, one in self._mapped.items() if not (one.is_deleted and one.let_go())}
            self._readable = {file: one for file, one in self._readable.items() if not (one.is_deleted and one.let_go())}

    def _mapped_as(self, segment: str, lent: Descriptor) -> Readable | None:
        """The mapping of a segment that is lent: the one that it was written by, or one that is made at its first lease."""
        self._forget_deleted()
        status = os.fstat(lent.number)
        file = (status.st_dev, status.st_ino)
        with self._lock:
            written, read = self._mapped.get(segment), self._readable.get(file)
            if written is not None and written.file == file:
                return written
            if read is not None and len(read.map) == status.st_size:
                return read
            with suppress(OSError, ValueError):
                read = self._readable[file] = Readable.of(lent)
                return read
        return None

    # ------------------------------------------------------------------------------------------------ conversations

    def _ask(self, message: Mapping[str, Any], patience_s: float | None = None) -> dict[str, Any]:
        line = self._line()
        told, descriptors = self.exchange(line, message, patience_s)
        for descriptor in descriptors:
            os.close(descriptor)
        self.keep(line)
        return told

    def _line(self) -> Line:
        while (line := self._idle_line()) is not None:
            if not line.has_ended:
                return line
            line.close()  # the tier was started again since
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self._slowest_answer_s)
            connection.connect(self._socket_path)
        except OSError as error:
            connection.close()
            self.forget()
            if isinstance(error, FileNotFoundError):
                message = "this node has no memory tier now; TieredStorageConfig of its cluster switches it on"
                raise NoTier(message) from error
            message = f"the memory tier of this node does not answer at {self._socket_path}: {error}"
            raise TierAway(message) from error
        line = Line(connection)
        self.exchange(line, self._hello, keep_refused=False)
        self._watch_over_the_tier()
        return line

    def _watch_over_the_tier(self) -> None:
        """A line of its own, whose end is heard at once: a tier that has been switched off gets its memory back only when it is unmapped here."""
        with self._lock:
            if self._watch is not None or self._is_closed.is_set():
                return
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if connection.connect_ex(self._socket_path):
                connection.close()
                return
            self._watch = Line(connection)
        threading.Thread(target=self._unmap_after, args=(self._watch,), name="everstep-tier-watch", daemon=True).start()

    def _unmap_after(self, watch: Line) -> None:
        watch.wait_for_end()
        with self._lock:
            self._watch = None
            watch.close()
        for (
            pause_s
        ) in _UNMAPPING_S:  # the tier may delete its segments a little later than it hangs up, or be started again and keep them
            self._is_closed.wait(pause_s)
            self._forget_deleted()

    def _idle_line(self) -> Line | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def keep(self, line: Line) -> None:
        """For the next request; a line that a segment is open on is not kept before that is sealed or given back."""
        with self._lock:
            self._idle.append(line)

    def exchange(
        self, line: Line, message: Mapping[str, Any], patience_s: float | None = None, *, keep_refused: bool = True
    ) -> tuple[dict[str, Any], list[int]]:
        """One request, one answer. A line that breaks is closed; after a refusal it goes on."""
        try:
            heard = line.exchange(message, patience_s or self._slowest_answer_s)
        except (OSError, ValueError) as error:
            line.close()
            text = f"the memory tier of this node has broken off: {error}"
            raise TierAway(text) from error
        told, descriptors = heard
        if why := told.get("refused"):
            for descriptor in descriptors:
                os.close(descriptor)
            self.keep(line) if keep_refused else line.close()
            raise SaveRefused(str(why))
        return told, descriptors

    def _map(self, segment: str, path: str, descriptors: list[int]) -> Mapped:
        """The mapping of a segment, made at its first use. A name that now means another file is mapped anew."""
        known = self._mapped.get(segment)
        if not descriptors:
            if known is None or not known.is_file(path):
                message = f"the memory tier hands over segment {segment} without its descriptor"
                raise TierAway(message)
            return known
        mapped = Mapped(Descriptor(descriptors[0]))
        with self._lock:
            self._mapped[segment] = mapped
        return mapped


class Line:
    """A conversation with the tier, of one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._conversation = Conversation(connection)

    @property
    def has_ended(self) -> bool:
        """An idle line on which there is something to read: its end."""
        return _readable(self._connection, 0)

    def exchange(self, message: Mapping[str, Any], patience_s: float) -> tuple[dict[str, Any], list[int]]:
        """Raises OSError and ValueError."""
        self._connection.settimeout(patience_s)
        self._conversation.say(message)
        heard = self._conversation.hear()
        if heard is None:
            message_ = "its process has ended; the agent starts it again, and what it had sealed is kept"
            raise ConnectionResetError(message_)
        return heard

    def wait_for_end(self) -> None:
        _readable(self._connection, None)

    def hang_up(self) -> None:
        """Whoever waits on it in another thread wakes."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._conversation.close()


class MemoryShard:
    """A segment being filled. ``body`` is writable, ``nbytes`` long, and this process's own until it is released."""

    def __init__(self, memory: Memory, line: Line, mapped: Mapped, segment: str, nbytes: int) -> None:
        self._memory = memory
        self._line = line
        self._mapped = mapped
        self._segment = segment
        self.body = mapped.body(nbytes)
        self.views = mapped.views

    def seal(self, nbytes: int, save: str | None = None) -> Seal:
        """Commits the first ``nbytes``; the tier hashes them. ``save`` names the save if ``open`` could not yet."""
        named = {} if save is None else {"save": save}
        told, _ = self._memory.exchange(
            self._line, {"ask": Ask.SEAL.value, "segment": self._segment, "nbytes": nbytes, **named}, keep_refused=False
        )
        try:
            seal = Seal.from_wire(told["seal"])
        except (KeyError, ValueError) as error:
            self._line.close()
            message = f"the memory tier answers in words that this library does not know: {error!r}"
            raise TierAway(message) from error
        self._memory.keep(self._line)
        return seal

    def abandon(self) -> None:
        """Gives the segment back unwritten. Never raises: a tier that is gone has it back already."""
        with suppress(TierAway, SaveRefused):
            self._memory.exchange(self._line, {"ask": Ask.ABANDON.value, "segment": self._segment}, keep_refused=False)
            self._memory.keep(self._line)

    def release(self) -> None:
        """After ``seal`` or ``abandon``, whatever came of them: whoever writes a segment without its lock may write into another's shard."""
        self._mapped.unlock()
        with suppress(BufferError):  # a tensor over it is left; its mapping stays as long
            self.body.release()


def _readable(connection: socket.socket, timeout_ms: int | None) -> bool:
    """``poll``, as ``select`` knows no descriptors above 1023, and trainers have many."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(timeout_ms))
