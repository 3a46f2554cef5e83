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
from everstep.notices import LEAVING_CAUSE
from everstep.protocol import Source

from .agreement import Agreement, Candidate, Sight, do_all_see, newest_seen
from .anomaly import Losses
from .place import Place
from .rendezvous import RendezvousClient
from .state import State

_log = logging.getLogger("everstep.checkpoint")
_MOST_CANDIDATES = 16
_MOST_LOOKED_THROUGH = 1024
"""For one that is old enough to go back to."""
_LOOK_PATIENCE_S = 20.0
_LOOK_TWICE_S = 6.0
_SURE_AFTER_S = 1.5
_LOOK_AGAIN_S = 0.2
_UPLOAD_PATIENCE_S = 2.0


class Checkpoints:
    """One per run that has somewhere to save to. All methods but ``save_soon`` are the training thread's."""

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
        self._has_asked_to_leave = False
        self._failures: tuple[Failure, ...] = ()
        self._unreadable: set[tuple[int, str]] = set()
        self._discard_after: int | None = None
        self.not_after: int | None = None
        """Of which step a checkpoint may be at most; None: of any."""
        self.loaded: Origin | None = None
        """What training has gone on from, for as long as a failure would be laid to it."""

    # ------------------------------------------------------------ within a step

    def asks(self, step: int, rank: int, *, is_last: bool) -> Asks:
        """What this rank lays into the vote. ``step`` counts the steps committed once this one is.

        The last step of a run is saved durably, whatever the intervals say: memory is given back when a job has ended.
        """
        self._has_asked_to_leave = self._leaving.is_asked
        urgent = is_last or self._has_asked_to_leave
        return self._saver.asks(step, decides=rank == 0, wanted=self._checkpointer.asked(), is_urgent=urgent)

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

    def take_stall(self) -> float:
        """The seconds for which saves have kept training waiting since this was last asked: in the step that is committed now."""
        return self._saver.take_stall()

    def committed(self, wanted: Wanted, place: Place, seconds: float) -> None:
        """A step has been committed; the copy of what is ``wanted`` begins, and ends beside the next forward and backward."""
        self._saver.stepped(seconds)
        self._checkpointer.tell_ended(self._saver, place.rank)
        if wanted:
            self._save(wanted, place)
        else:
            self._checkpointer.prepare(self._saver, self._state, place.rank, place.world_size)
        if self._has_asked_to_leave:
            self._saver.flush(self._leaving.grace_s, durable=True)
            self._leaving.leave()

    def _save(self, wanted: Wanted, place: Place) -> None:
        self._retry_discard(place.rank)
        cursor: dict[str, Any] = {"step": place.step, "consumed": place.consumed, "loss": place.last_loss, "job": self._job}
        cursor |= {"recent": place.recent, "position": place.position, "losses": place.losses.to_wire()}
        save = f"{self._name}-{place.generation}"
        self._checkpointer.save(self._saver, self._state, wanted, place.step, save, place.rank, place.world_size, cursor)
        self._checkpointer.served(wanted)

    # ------------------------------------------------------------ between generations

    def interrupted(self) -> None:
        """A change of membership begins."""
        self.settle()
        self._saver.interrupted()
        self._leaving.leave()
        if not self._checkpointer.tiers.has_memory:
            # A connection to the store that is opened while a group is being built would be taken for one of the group's.
            self._saver.flush(_UPLOAD_PATIENCE_S)

    def flush(self, limit_s: float, rank: int) -> None:
        """Training is over: the last save is waited for."""
        self.settle()
        self._saver.flush(limit_s)
        self._checkpointer.tell_ended(self._saver, rank)

    def sight(self, rank: int, *, has_begun: bool = False, give_way: Callable[[], object] = int) -> Sight:
        """What this rank sees. ``give_way`` raises when a newer generation exists.

        A tier that cannot be asked is waited for; and, if training ``has_begun``, one that knows of nothing: just after a loss it may not have
        reached the nodes that hold the rest of a step. For the same reason a first generation looks more than once before it believes a memory
        tier that knows of nothing: to begin anew over a step that is there would be the worst of all answers.
        """
        began = time.monotonic()
        sure_after_s = _SURE_AFTER_S if self._checkpointer.tiers.is_memory_there else 0.0
        while True:
            seen, trouble = self._look()
            looked_s = time.monotonic() - began
            is_sure = trouble is None and not has_begun and looked_s >= sure_after_s
            if seen or is_sure or looked_s > _LOOK_PATIENCE_S:
                return Sight(rank, seen, self._failures, trouble or (None if seen else self._lost()))
            give_way()
            time.sleep(_LOOK_AGAIN_S)

    def look_again(self, seen: Sight, other: Candidate, give_way: Callable[[], object] = int) -> Sight:
        """Another rank sees a newer checkpoint. It is looked for a while: whoever passes it over loses steps that nobody had to lose."""
        until = time.monotonic() + _LOOK_TWICE_S
        key = (other.step, other.save)
        while key not in self._unreadable and time.monotonic() < until:
            if key in {(one.step, one.save) for one in seen.candidates}:
                break
            give_way()
            time.sleep(_LOOK_AGAIN_S)
            candidates, _ = self._look()
            seen = Sight(seen.rank, candidates or seen.candidates, seen.failures, seen.trouble)
        return seen

    def _look(self) -> tuple[tuple[Candidate, ...], str | None]:
        """Candidates, newest first, and what could not be asked."""
        try:
            found = self._checkpointer.tiers.latest(_MOST_CANDIDATES if self.not_after is None else _MOST_LOOKED_THROUGH)
        except (EverstepError, OSError) as error:
            return (), str(error)
        seen = (Candidate(one.step, one.save, one.is_in_memory) for one in found)
        usable = [one for one in seen if (one.step, one.save) not in self._unreadable and self._is_old_enough(one)]
        return tuple(usable[:_MOST_CANDIDATES]), None

    def _is_old_enough(self, one: Candidate) -> bool:
        return self.not_after is None or one.step <= self.not_after

    def _lost(self) -> str | None:
        """Words for checkpoints that are there and of which nothing can be read: training must not begin anew over them by itself."""
        if self.not_after is not None:
            return f"no checkpoint is of step {self.not_after} or before, to which the loss policy wants to go back"
        steps = ", ".join(str(step) for step, _ in sorted(self._unreadable))
        return f"no good copy is left of the checkpoints of steps {steps}" if steps else None

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
        place.position = told.get("position")  # older checkpoints have none: a stream is then read from its beginning
        place.losses.went_back(Losses.from_wire(told.get("losses")))
        self.not_after = None
        place.holds_state = True
        _log.warning("Going on from the checkpoint of step %d, read from %s", chosen.step, loaded.told)
        return Source.STORE if loaded.origin.source == "store" else Source.MEMORY, loaded.nbytes

    def joined(self, rank: int, cause: str = "") -> None:
        """Everybody holds the state: what is newer belongs to a past that is left.

        Ranks that were handed over because a node leaves took the wish for a save with them: those who go on have it instead.
        """
        self._retry_discard(rank)
        if cause.startswith(LEAVING_CAUSE):
            self.save_soon()

    def save_soon(self) -> None:
        """The next step that can be is saved on all ranks, durably: this node, or another one, is about to go. From any thread."""
        self._checkpointer.ask(durable=True)

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


def look_around(
    meeting: RendezvousClient, checkpoints: Checkpoints | None, place: Place, world_size: int, *, has_begun: bool
) -> tuple[Sight, ...]:
    """What everybody sees of checkpoints, in order of rank. Asked only when nobody holds state: it takes longer than a recovery from a peer.

    If somebody sees a newer one than others, those look again, in a second round that all ranks take part in, or none.
    """

    def spread(round_name: str, mine: Sight) -> tuple[Sight, ...]:
        return tuple(Sight.from_wire(told) for told in meeting.gather(round_name, place.rank, world_size, mine.to_wire()))

    rank = place.rank
    mine = checkpoints.sight(rank, has_begun=has_begun, give_way=meeting.give_way) if checkpoints else Sight(rank)
    sights = spread("sight", mine)
    newest = newest_seen(sights)
    if newest is None or do_all_see(sights, newest):
        return sights
    return spread("again", checkpoints.look_again(mine, newest, meeting.give_way) if checkpoints else mine)
