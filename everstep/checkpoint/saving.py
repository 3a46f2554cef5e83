"""Saves of one rank: a thread copies, seals and waits, while the training thread goes on.

The training thread gives a save what is to be written at a moment at which the state is that of a committed step, and waits for the copy before
it changes anything (``settle``). A save that fails is told and forgotten: the next one is not concerned.
"""

from __future__ import annotations

import atexit
import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from everstep.errors import EverstepError, SaveFailed
from everstep.shards import ShardKind

from .interval import Costs
from .policy import Asks, Policy, Schedule, Wanted
from .snapshot import Captured
from .tiers import OpenShard, Tiers

_log = logging.getLogger("everstep.checkpoint")

ROOM_PATIENCE_S = 5.0
"""How long the training thread waits for a tier that has not even made room, before this save is given up."""
_DRAIN_PATIENCE_S = 900.0
_LOOK_EVERY_S = 0.1
_STEPS_REMEMBERED = 21
_EXIT_PATIENCE_S = 30.0
_running: set[Save] = set()
_is_exiting = threading.Event()


@dataclass(frozen=True)
class Order:
    """What one rank writes of a step. ``contents`` is the metadata shard, which rank 0 writes."""

    step: int
    save: str
    rank: int
    world_size: int
    wanted: Wanted
    captured: Captured
    contents: bytes | None = None


@dataclass
class Outcome:
    """What a save has cost: ``stall_s`` kept training waiting, ``seconds`` went by until this rank's shards were sealed."""

    step: int
    is_durable: bool
    nbytes: int = 0
    stall_s: float = 0.0
    seconds: float = 0.0
    error: Exception | None = None


class Work(Protocol):
    """What a save's thread does, in this order; ``abandon`` instead of the rest when one of it raises."""

    def open(self) -> None: ...

    def copy(self) -> None:
        """Reads the state, for the last time."""

    def seal(self) -> int:
        """Returns how many bytes this rank has saved."""

    def abandon(self) -> None: ...


class ShardWork:
    """A part of a divided state."""

    def __init__(self, order: Order, tiers: Tiers) -> None:
        self._order = order
        self._tiers = tiers
        self._shard: OpenShard | None = None

    def open(self) -> None:
        order = self._order
        self._shard = self._place(order.rank, order.captured.layout.size, ShardKind.DATA)

    def copy(self) -> None:
        if self._shard is not None:
            self._order.captured.write(self._shard.body, self._shard.views)

    def seal(self) -> int:
        size, contents, shard = self._order.captured.layout.size, self._order.contents, self._shard
        if shard is None:
            raise SaveFailed
        shard.seal(size)
        self._shard = None
        if contents is None:
            return size
        self._shard = self._place(self._order.world_size, len(contents), ShardKind.METADATA)
        self._shard.body[: len(contents)] = contents
        self._shard.seal(len(contents))
        self._shard = None
        return size + len(contents)

    def abandon(self) -> None:
        if self._shard is not None:
            self._shard.abandon()

    def _place(self, index: int, nbytes: int, kind: ShardKind) -> OpenShard:
        order = self._order
        return self._tiers.open(
            index=index, step=order.step, save=order.save, nbytes=nbytes, kind=kind, is_durable=order.wanted.durable
        )


class Save:
    """One save under way."""

    def __init__(
        self, work: Work, step: int, wanted: Wanted, tiers: Tiers, policy: Callable[[], Policy | None], *, is_watched: bool = True
    ) -> None:
        self.policy: Policy | None = None
        """What is asked of saves by the time that this one has ended."""
        self.outcome = Outcome(step, wanted.durable)
        self.drain_s: float | None = None
        self.drained = threading.Event()
        """Whatever could be learnt of how long it took to be durable is known."""
        self._tiers = tiers
        self._ask_policy = policy
        self._is_watched = is_watched
        self._lock = threading.Lock()
        self._is_copying = self._is_given_up = False
        self._copied, self._over = threading.Event(), threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(work,), name="everstep-save", daemon=True)
        _running.add(self)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def settle(self) -> None:
        """Waits until nothing of the state is read any more. What it waits counts as stall."""
        if self._is_given_up:
            return  # each later step would wait as long again for a tier that hangs
        began = time.monotonic()
        if self._copied.wait(ROOM_PATIENCE_S) or not self._give_up():
            self._copied.wait()
        self.outcome.stall_s += time.monotonic() - began

    def wait(self, limit_s: float) -> bool:
        """Until this rank's shards are sealed."""
        return self._over.wait(max(0.0, limit_s))

    def end(self, limit_s: float) -> None:
        """Before the interpreter ends: a thread that it finds in torch's or the store's code aborts the process, whose exit code is then lost."""
        self.wait(limit_s)
        if not self._tiers.has_memory:  # where one is, the thread waits in Python's own code
            self._thread.join(limit_s)

    def _give_up(self) -> bool:
        """True unless the copy has begun: then it ends by itself."""
        with self._lock:
            self._is_given_up = not self._is_copying
            return self._is_given_up

    def _begin_copy(self) -> None:
        with self._lock:
            self._is_copying = not self._is_given_up
        if not self._is_copying:
            message = f"the memory tier has made no room within {ROOM_PATIENCE_S:.0f} s, and the state has moved on"
            raise SaveFailed(message)

    def _run(self, work: Work) -> None:
        try:
            self._do(work)
            self.policy = self._ask_policy()
        except Exception as error:  # noqa: BLE001, told with the next step
            self.outcome.error = error
        self.outcome.seconds = time.monotonic() - self._began
        self._copied.set()
        self._over.set()
        if self.outcome.error is None and self.outcome.is_durable and self._is_watched:
            del work  # and with it what was captured
            if self.await_durable(_DRAIN_PATIENCE_S):
                self.drain_s = time.monotonic() - self._began
        self.drained.set()
        _running.discard(self)

    def _do(self, work: Work) -> None:
        try:
            work.open()
            self._begin_copy()
            work.copy()
            self._copied.set()
            self.outcome.nbytes = work.seal()
        except BaseException:
            work.abandon()
            raise

    def await_durable(self, limit_s: float) -> bool:
        """Until the step is in the object store. Where no memory tier is, the ranks write there themselves, and whoever is last commits the step."""
        until = time.monotonic() + limit_s
        try:
            while (left := until - time.monotonic()) > 0 and not _is_exiting.is_set():
                if self._tiers.wait(self.outcome.step, is_durable=True, seconds=left)["is_durable"]:
                    return True
                _is_exiting.wait(_LOOK_EVERY_S)
        except (EverstepError, OSError) as error:
            _log.info("Step %d: whether it is durable is not known: %s", self.outcome.step, error)
        return False


class Saver:
    """The saves of this rank, one after the other."""

    def __init__(self, tiers: Tiers, schedule: Schedule, policy: Callable[[], Policy | None]) -> None:
        self._ask_policy = policy
        self.schedule = schedule
        self._tiers = tiers
        self._current: Save | None = None
        self._watched: Save | None = None
        self._preparing: threading.Thread | None = None
        self._is_told = True
        self._drain_s = 0.0
        self._stalled_s = 0.0
        self._steps_s: deque[float] = deque(maxlen=_STEPS_REMEMBERED)

    @property
    def is_busy(self) -> bool:
        is_saving = self._current is not None and not self._current.is_over
        return is_saving or (self._preparing is not None and self._preparing.is_alive())

    def prepare(self, reserve: Callable[[], None]) -> None:
        """Has segments touched, on a thread: a first save into fresh ones takes some ten times as long. Until that has ended nothing is saved."""
        self._preparing = threading.Thread(target=reserve, name="everstep-reserve", daemon=True)
        self._preparing.start()

    def asks(self, step: int, *, decides: bool, wanted: Wanted, is_urgent: bool = False) -> Asks:
        """``decides``: this is rank 0, whose schedule counts. ``wanted`` was asked for on top of it."""
        due = (self.schedule.wants(step) if decides else Wanted()) | self.schedule.possible(wanted)
        if is_urgent:
            due = due | self.schedule.urgently()
        return Asks(due.memory, due.durable, self.is_busy, is_urgent)

    def begin(self, work: Work, step: int, wanted: Wanted, *, stalled_s: float = 0.0) -> None:
        """The copy begins now. ``stalled_s``: what capturing has cost.

        Of durable saves one is watched at a time: in an outage of the store each would keep a thread and a line to the tier for its patience.
        """
        self.schedule.saved(step, wanted)
        is_watched = wanted.durable and (self._watched is None or self._watched.drained.is_set())
        self._learn()
        self._current, self._is_told = Save(work, step, wanted, self._tiers, self._ask_policy, is_watched=is_watched), False
        self._watched = self._current if is_watched else self._watched
        self._current.outcome.stall_s += stalled_s
        self._stalled_s += stalled_s

    def make_way(self) -> None:
        """Waits for the save before, boundedly: it is still under way only where the next one is urgent, or nobody votes."""
        if self._current is not None:
            self._current.wait(ROOM_PATIENCE_S)

    def settle(self) -> None:
        """Nothing of the state is read by a save from now on."""
        if self._current is not None:
            before_s = self._current.outcome.stall_s
            self._current.settle()
            self._stalled_s += self._current.outcome.stall_s - before_s

    def take_stall(self) -> float:
        """The seconds for which saves have kept training waiting since this was last asked."""
        taken, self._stalled_s = self._stalled_s, 0.0
        return taken

    def stepped(self, seconds: float) -> None:
        self._steps_s.append(seconds)

    def ended(self) -> tuple[Outcome, str | None] | None:
        """The save that has ended since the last call, once, and words when it has changed the intervals."""
        save = self._current
        if save is None or not save.is_over or self._is_told:
            return None
        self._is_told = True
        self.schedule.policy = save.policy or self.schedule.policy
        if save.outcome.error is not None:
            _log.warning("Step %d was not saved by this rank: %s", save.outcome.step, save.outcome.error)
            self.schedule.came_to_nothing()
            return save.outcome, f"not saved: {save.outcome.error}"
        return save.outcome, self.schedule.measured(self._costs(save))

    def interrupted(self) -> None:
        """The ranks have changed: a save that had not ended may lack the shard of one that is gone, so it is due again."""
        if self.is_busy:
            self.schedule.came_to_nothing()

    def flush(self, limit_s: float, *, durable: bool = False) -> bool:
        """Waits for the save under way, and with ``durable`` until its step is in the object store. False when the time was not enough."""
        save, until = self._current, time.monotonic() + limit_s
        if save is None:
            return True
        if not save.wait(limit_s) or save.outcome.error is not None:
            return False
        return not (durable and save.outcome.is_durable) or save.await_durable(max(0.0, until - time.monotonic()))

    def _learn(self) -> None:
        """How long the newest watched save took to be durable, which is known long after it was told as ended."""
        if self._watched is not None and self._watched.drain_s is not None:
            self._drain_s = self._watched.drain_s

    def _costs(self, save: Save) -> Costs:
        self._learn()
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        drain_s = self._drain_s or save.outcome.seconds
        return Costs(step_s, save.outcome.stall_s, save.outcome.seconds, drain_s, self.schedule.policy.mtbf_s)


@atexit.register
def _end_all() -> None:
    _is_exiting.set()
    until = time.monotonic() + _EXIT_PATIENCE_S
    for save in tuple(_running):
        save.end(max(0.0, until - time.monotonic()))
