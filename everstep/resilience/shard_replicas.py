"""Replicas of shards: with one replica of the model (pure FSDP) no other rank has what a dead one had, so each gives a copy away.

1. After a committed step a thread copies the own shard (parameters, optimizer state, and everything that is no tensor) into a slot of this
   process, and from there to the buddy, a process on another node where there is one. It runs beside the next forward and backward.
2. The vote for the next update waits until the copy is sealed at the buddy. So ranks differ by one step at most (by ``every`` steps, if not each
   step is copied), and two slots suffice: the newer may be torn, the older is not.
3. A slot has no step before its first byte is written, and gets one after its last: what is torn is never offered.
4. Slots that are newer than what was agreed on belong to a past that is left, and are emptied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from everstep.errors import CollectiveFailed
from everstep.protocol import Member

from .memory import bytes_of
from .shard_agreement import Mark
from .sharding import Seat

_POLL_S = 0.02


def buddy_of(rank: int, members: Sequence[Member]) -> int | None:
    """Which rank keeps the replica of this one's shard; None in a world of one.

    All ranks look equally far ahead, so that each keeps one replica; the nearest distance at which as many as possible reach another node.
    """
    size = len(members)
    if size == 1:
        return None

    def reached(distance: int) -> int:
        return sum(members[one].node != members[(one + distance) % size].node for one in range(size))

    best = max(range(1, size), key=lambda distance: (reached(distance), -distance))
    return (rank + best) % size


@dataclass
class Slot:
    """One copy of one shard. ``sizes`` are those of its tensors in ``body``, one behind the other."""

    step: int | None = None
    rest: bytes = b""
    sizes: tuple[int, ...] = ()
    lengths: tuple[int | None, ...] = ()
    """Of each tensor: how many rows the whole has, None for one that is not sharded."""
    body: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    is_open: bool = False
    loss: float | None = None
    """Of the last step that the copy holds."""

    def open(self, sizes: Sequence[int], lengths: Sequence[int | None]) -> memoryview:
        """Invalidates what was there; returns the room to be filled before ``seal``."""
        self.step = None
        self.lengths = tuple(lengths)
        nbytes = sum(sizes)
        if self.body.numel() != nbytes:
            self.body = torch.empty(nbytes, dtype=torch.uint8)
        self.sizes = tuple(sizes)
        return bytes_of(self.body)

    def tensors(self) -> list[torch.Tensor]:
        """The bytes of each tensor."""
        return list(torch.split(self.body, list(self.sizes))) if self.sizes else []


class Slots:
    """The replicas in this process: its own shard's and those that it keeps for others. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[Seat, list[Slot]] = {}
        self._generation = 0

    def enter(self, generation: int) -> None:
        """From now on nothing that was begun in an older generation is sealed."""
        with self._lock:
            self._generation = generation

    def marks(self) -> tuple[Mark, ...]:
        with self._lock:
            sealed = [(seat, slot.step) for seat, pair in self._slots.items() for slot in pair]
        return tuple(sorted((seat.shards, seat.index, step) for seat, step in sealed if step is not None))

    def losses(self) -> tuple[tuple[int, float | None], ...]:
        """The loss of the last step of each replica, by its step."""
        with self._lock:
            sealed = {slot.step: slot.loss for pair in self._slots.values() for slot in pair if slot.step is not None}
        return tuple(sorted(sealed.items()))

    def find(self, seat: Seat, step: int) -> Slot | None:
        with self._lock:
            return next((slot for slot in self._slots.get(seat, ()) if slot.step == step), None)

    def to_fill(self, seat: Seat, step: int) -> Slot:
        """The slot that is to be overwritten: one that is torn or has this very step, else the older. To be given back by ``seal`` or ``leave``."""
        with self._lock:
            pair = self._slots.setdefault(seat, [Slot(), Slot()])
            same = [number for number, slot in enumerate(pair) if slot.step == step]
            chosen = (
                same[0] if same else min((0, 1), key=lambda number: -1 if pair[number].step is None else pair[number].step or 0)
            )
            if pair[chosen].is_open:  # whoever fills it belongs to an older generation, and has not noticed yet
                pair[chosen] = Slot()
            pair[chosen].step, pair[chosen].is_open = None, True
            return pair[chosen]

    def seal(self, slot: Slot, step: int, rest: bytes, loss: float | None, generation: int) -> bool:
        """Whether it counts."""
        with self._lock:
            slot.is_open = False
            if generation != self._generation:
                return False
            slot.rest, slot.loss, slot.step = rest, loss, step
            return True

    def leave(self, slot: Slot) -> None:
        with self._lock:
            slot.is_open = False

    def drop_newer(self, step: int) -> None:
        with self._lock:
            for pair in self._slots.values():
                for slot in pair:
                    if slot.step is not None and slot.step > step:
                        slot.step = None

    def keep_only(self, seats: set[Seat]) -> None:
        with self._lock:
            self._slots = {seat: pair for seat, pair in self._slots.items() if seat in seats}


@dataclass(frozen=True)
class Copy:
    """What one push gives away: the living tensors, which must not change until the own slot is sealed."""

    seat: Seat
    step: int
    rest: bytes
    tensors: Sequence[torch.Tensor]
    lengths: Sequence[int | None]
    loss: float | None


Send = Callable[[Copy, Slot], None]
"""Gives a sealed slot to the buddy, and returns when it is sealed there. Raises TransferFailed or Superseded."""


class Replicator:
    """Copies of this process's shard in one generation. ``every``: steps between two copies."""

    def __init__(self, slots: Slots, send: Send, every: int, generation: int, is_superseded: Callable[[], bool]) -> None:
        self._slots = slots
        self._generation = generation
        self._send = send
        self._every = every
        self._is_superseded = is_superseded
        self._done = threading.Event()
        self._done.set()
        self._error: BaseException | None = None

    def is_due(self, step: int) -> bool:
        return step % self._every == 0

    def begin(self, copy: Copy) -> None:
        """The copy before is waited for: a step that is passed over has no vote which would have done so. What failed with it is raised by ``settle``."""
        self.rest()
        if self._error is not None:
            return
        self._done.clear()
        threading.Thread(target=self._run, args=(copy,), name="everstep-replica", daemon=True).start()

    def settle(self) -> None:
        """Waits until the newest copy is sealed at the buddy.

        Raises:
            CollectiveFailed: it has failed, or a newer generation exists.
        """
        while not self._done.wait(_POLL_S):
            if self._is_superseded():
                break
        if not self._done.is_set() or self._error is not None:
            message = f"the replica of this rank's shard was not sealed: {self._error or 'a newer generation exists'}"
            raise CollectiveFailed(message)

    def rest(self) -> None:
        """Waits until nothing reads the living tensors any more. The thread gives way to a newer generation by itself."""
        self._done.wait()

    def _run(self, copy: Copy) -> None:
        try:
            self._give_away(copy)
        except BaseException as error:  # noqa: BLE001, raised in the training thread, which waits for it
            self._error = error
        self._done.set()

    def _give_away(self, copy: Copy) -> None:
        slot = self._slots.to_fill(copy.seat, copy.step)
        room = slot.open([tensor.nbytes for tensor in copy.tensors], copy.lengths)
        for tensor in copy.tensors:
            whole = tensor.detach().cpu().contiguous()
            room[: whole.nbytes] = bytes_of(whole)
            room = room[whole.nbytes :]
        if self._slots.seal(slot, copy.step, copy.rest, copy.loss, self._generation):
            self._send(copy, slot)
