"""What a run does with checkpoints: which it sees, how it goes on from one, and that a save never sees half an update.

``settle`` stands before every line that changes the state: before the body of an update, before a change of membership, before a load.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from everstep.checkpoint.checkpointer import Checkpointer
from everstep.checkpoint.loading import Origin, load
from everstep.checkpoint.poison import SOON, Failure
from everstep.checkpoint.policy import NOTHING, Asks, Wanted, decided
from everstep.checkpoint.saving import Saver
from everstep.checkpoint.signals import Leaving
from everstep.errors import CheckpointUnreadable, EverstepError
from everstep.protocol import Source

from .agreement import Agreement, Candidate, Sight
from .place import Place
from .state import State

_log = logging.getLogger("everstep.checkpoint")
_MOST_CANDIDATES = 16
_LOOK_PATIENCE_S = 20.0
_LOOK_AGAIN_S = 0.2
_UPLOAD_PATIENCE_S = 2.0


class Checkpoints:
    """One per run that has somewhere to save to. All methods are the training thread's."""

    def __init__(
        self, checkpointer: Checkpointer, saver: Saver, state: State, job: str, *, is_alone: bool, is_in_step: Callable[[], bool]
    ) -> None:
        self._checkpointer = checkpointer
        self._saver = saver
        self._state = state
        self._job = job
        self._name = secrets.token_hex(4) if is_alone else job
        """Part of each save's name. Alone there are no generations that tell the saves of one process from those of another."""
        self._leaving = Leaving(checkpointer.grace_s, is_in_step)
        self._leaving.install()
        self._failures: tuple[Failure, ...] = ()
        self._unreadable: set[tuple[int, str]] = set()
        self._discard_after: int | None = None
        self.loaded: Origin | None = None
        """What training has gone on from, for as long as a failure would be laid to it."""

    # ------------------------------------------------------------ within a step

    def asks(self, step: int, rank: int) -> Asks:
        """What this rank lays into the vote. ``step`` counts the steps committed once this one is."""
        wanted = self._checkpointer.asked()
        return self._saver.asks(step, decides=rank == 0, wanted=wanted, is_urgent=self._leaving.is_asked)

    def decide(self, sums: list[float], loss: float | None) -> Wanted:
        """What becomes of the step that everybody has voted for: nothing, if its loss is no number."""
        return NOTHING if loss is not None and not math.isfinite(loss) else decided(sums)

    def blame(self, step: int, loss: float | None, generation: int) -> str | None:
        """Words, if the loss of ``step`` is no number so soon after a load that it is laid to what was loaded."""
        loaded = self.loaded
        if loaded is None or loss is None:
            return None
        if math.isfinite(loss):
            if step >= loaded.step + SOON:
                self.loaded, self._failures = None, ()
            return None
        number = generation or len(self._failures) + 1  # alone there are no generations to tell one failure from the next
        self._failures = (*self._failures, Failure(loaded.step, loaded.save, loaded.source, step, number))
        self.loaded = None
        return f"the loss of step {step} is {loss}, soon after going on from the checkpoint of step {loaded.step} ({loaded.source})"

    def settle(self) -> None:
        """From now on no save reads the state: it may be changed."""
        self._saver.settle()

    def committed(self, wanted: Wanted, place: Place, seconds: float) -> None:
        """A step has been committed; the copy of what is ``wanted`` begins, and ends beside the next forward and backward."""
        self._saver.stepped(seconds)
        self._checkpointer.tell_ended(self._saver, place.rank)
        if not wanted:
            return
        self._retry_discard(place.rank)
        cursor = {"step": place.step, "consumed": place.consumed, "loss": place.last_loss, "job": self._job, "recent": place.recent}
        save = f"{self._name}-{place.generation}"
        self._checkpointer.save(self._saver, self._state, wanted, place.step, save, place.rank, place.world_size, cursor)
        self._checkpointer.served()
        if self._leaving.is_asked:
            self._saver.flush(self._leaving.grace_s, durable=True)
            self._leaving.leave()

    # ------------------------------------------------------------ between generations

    def interrupted(self) -> None:
        """A change of membership begins."""
        self.settle()
        self._saver.interrupted()
        self._leaving.leave()
        if not self._checkpointer.tiers.has_memory:
            # A connection to the store that is opened while a group is being built would be taken for one of the group's.
            self._saver.flush(_UPLOAD_PATIENCE_S)

    def flush(self, limit_s: float) -> None:
        """Training is over: the last save is waited for."""
        self.settle()
        self._saver.flush(limit_s)
        self._checkpointer.tell_ended(self._saver, 0)

    def sight(self, rank: int, give_way: Callable[[], None]) -> Sight:
        """What this rank sees. A tier that cannot be asked is waited for a while; ``give_way`` raises when a newer generation exists."""
        until = time.monotonic() + _LOOK_PATIENCE_S
        while True:
            try:
                found = self._checkpointer.tiers.latest(_MOST_CANDIDATES)
                break
            except (EverstepError, OSError) as error:
                if time.monotonic() > until:
                    return Sight(rank, (), self._failures, str(error))
            give_way()
            time.sleep(_LOOK_AGAIN_S)
        seen = (Candidate(one.step, one.save, one.is_in_memory) for one in found)
        return Sight(rank, tuple(one for one in seen if (one.step, one.save) not in self._unreadable), self._failures)

    def load(self, agreement: Agreement, place: Place) -> tuple[Source, int]:
        """Fills the state in place, and ``place``. Returns where the bytes came from, and how many.

        Raises:
            CheckpointUnreadable: no copy of it can be read here; this rank does not offer it again.
        """
        chosen = agreement.checkpoint
        if chosen is None:
            raise CheckpointUnreadable
        self._state.abandon_step()
        self._failures = agreement.failures
        try:
            loaded = load(self._checkpointer.tiers, self._state, chosen.step, chosen.save)
        except CheckpointUnreadable:
            self._unreadable.add((chosen.step, chosen.save))
            raise
        told = loaded.cursor
        self.loaded = loaded.origin
        self._discard_after = chosen.step
        self._saver.schedule.begins_at(chosen.step)
        place.step, place.consumed, place.last_loss = told["step"], told["consumed"], told["loss"]
        place.recent = told["recent"] if told["job"] == self._job else []
        place.holds_state = True
        _log.warning("Going on from the checkpoint of step %d, read from %s", chosen.step, loaded.told)
        return Source.STORE if loaded.origin.source == "store" else Source.MEMORY, loaded.nbytes

    def joined(self, rank: int) -> None:
        """Everybody holds the state: what is newer belongs to a past that is left."""
        self._retry_discard(rank)

    def carried(self) -> dict[str, Any] | None:
        """For a peer that takes the state over: what it was loaded from."""
        return asdict(self.loaded) if self.loaded else None

    def took_over(self, carried: dict[str, Any] | None) -> None:
        """The state came from a peer."""
        self.loaded = Origin(**carried) if carried else None

    def _retry_discard(self, rank: int) -> None:
        """Before any save of the new lineage: of two lineages the newest step would not be the newest state."""
        if self._discard_after is None:
            return
        if rank == 0:
            try:
                self._checkpointer.tiers.discard(self._discard_after)
            except (EverstepError, OSError) as error:
                _log.warning(
                    "Steps after %d could not be superseded, and will be before the next save: %s", self._discard_after, error
                )
                return
        self._discard_after = None
