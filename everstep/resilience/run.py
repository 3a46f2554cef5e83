"""What user code sees of its run: the steps, the update, and where this process stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from everstep.checkpoint.policy import NOTHING, Asks, Wanted
from everstep.data.batches import Batches, Samples
from everstep.elastic import share_of
from everstep.errors import CollectiveFailed, EverstepError, StepNotCommitted
from everstep.local_protocol import ToAgent
from everstep.notices import Evacuation
from everstep.protocol import Source
from everstep.testing import faults

from . import randomness
from .checkpoints import Checkpoints
from .membership import Membership
from .place import Place
from .reduction import average_gradients
from .settings import Settings
from .state import State
from .unwind import RehearsalOver, Unwind

_REHEARSED_STEPS = 2
_LARGEST_REHEARSED_BATCH = 32
_RETOLD_STEPS = 8


class Run:
    """One per process, made by ``everstep.init``. ``rank`` and ``world_size`` change with the generation: ask again at each step."""

    def __init__(self, settings: Settings, membership: Membership) -> None:
        self._settings = settings
        self._membership = membership
        self._state: State | None = None
        self._global_batch = 1
        self._rehearsal: Place | None = None
        self._step_began = time.monotonic()
        self._wanted = NOTHING
        self._until = 0
        self.is_in_step = False
        """Training: neither rehearsing, nor waiting to join, nor done."""

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world_size(self) -> int:
        return self._place.world_size

    @property
    def generation(self) -> int:
        """0 before the first, and outside of a job."""
        return self._membership.place.generation

    @property
    def step(self) -> int:
        """The next step to be committed."""
        return self._place.step

    @property
    def notice(self) -> Evacuation | None:
        """That this process's node is about to go, with the reason and, if there is one, the deadline; None while it is not.

        Nothing need be done about it: the next step is saved on all ranks by itself, where there is somewhere to save to.
        """
        watcher = self._membership.watcher
        return watcher.notice if watcher else None

    @property
    def rehearsing(self) -> bool:
        """True in the dry run before the first generation: nothing that it does to the state or to the generators stays."""
        return self._rehearsal is not None

    @property
    def accumulation(self) -> float:
        """What a mean loss is to be divided by, so that the average of the ranks is the mean over the global batch; 1.0 when even."""
        if self.rehearsing:
            return 1.0
        return share_of(self._global_batch, self.rank, self.world_size).accumulation

    def steps(
        self,
        data: Samples,
        *,
        global_batch: int,
        until: int,
        seed: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yields ``(step, batch)`` from the committed step on; ``batch`` is this rank's part of the global batch, collated.

        Which samples a step sees depends on ``seed`` and on the samples consumed before it, never on the ranks. Before each step
        torch's, Python's and numpy's generators are seeded from (seed, step, rank).
        """
        chosen = self._settings.seed if seed is None else seed
        batches = Batches(data, global_batch=global_batch, seed=chosen, collate=collate)
        self._global_batch = global_batch
        if self.rehearsing:
            yield from self._rehearsed(data, global_batch, chosen, collate)
            return
        self._step_began = time.monotonic()
        self._until = until
        while self._place.step < until:
            step = self._place.step
            self._begin(step, chosen)
            yield step, batches.at(self._place.consumed, self.rank, self.world_size)
            if self._place.step == step:
                raise StepNotCommitted
        self.is_in_step = False

    def update(self, step: int, *, loss: torch.Tensor | float | None = None) -> Update:
        """The vote and the critical section: ``with run.update(step, loss=loss): optimizer.step(); …``.

        ``loss``, if given, is the one that ``backward`` was called on; its mean over the ranks is reported with the step.
        """
        return Update(self, step, loss)

    # ------------------------------------------------------------ for resilient

    def attach(self, state: State) -> None:
        if self._state is not state:
            faults.hook(state.model, state.optimizer)
        self._state = state

    def join(self) -> Source | None:
        """Joins the newest generation, as ``Membership.join``: before that no save reads the state any more."""
        self.is_in_step = False
        if self._checkpoints is not None:
            self._checkpoints.interrupted()
        return self._membership.join(self._attached())

    def begin_rehearsal(self) -> None:
        self._rehearsal = Place()
        faults.stand(0, 0, 0, is_quiet=True)

    def end_rehearsal(self) -> None:
        self._rehearsal = None
        faults.stand(0, 0, 0)

    # ------------------------------------------------------------ for Update

    @property
    def _checkpoints(self) -> Checkpoints | None:
        return None if self.rehearsing else self._membership.checkpoints

    @property
    def _place(self) -> Place:
        return self._rehearsal or self._membership.place

    def reduce_and_vote(self, step: int, loss: float | None) -> float | None:
        """Returns the mean loss of the step, or raises Unwind: then the step is to be trained again, or was somebody else's."""
        place = self._place
        if step != place.step:
            message = f"run.update({step}) while step {place.step} is being trained"
            raise EverstepError(message)
        try:
            return self._reduce_and_vote(loss)
        except (Unwind, EverstepError, RuntimeError) as error:
            if self.rehearsing or not (isinstance(error, Unwind) or self._membership.has_lost_generation):
                raise
        source = self.join()
        if source is Source.ROLLED_FORWARD:
            self._wanted = NOTHING
            return place.last_loss
        if source is not None:
            self._membership.has_joined = True
        raise Unwind

    def commit(self, loss: float | None) -> None:
        place = self._place
        place.step += 1
        place.consumed += self._global_batch
        place.is_reduced = False
        place.last_loss = loss
        self._attached().settle_step()
        if not self.rehearsing:
            self._save(self._tell_progress(loss))
            faults.point("after-update")

    def tear(self) -> None:
        """An update was left half-way: this process's state is no longer that of any step."""
        if self._membership.has_lost_generation:
            self._place.holds_state = False

    # ------------------------------------------------------------ inside

    def _attached(self) -> State:
        if self._state is None:
            message = "steps are trained inside a function decorated with everstep.resilient"
            raise EverstepError(message)
        return self._state

    def _begin(self, step: int, seed: int) -> None:
        if self._membership.is_superseded(self.generation):
            raise Unwind
        self.is_in_step = True
        faults.stand(self.rank, step, self.generation)
        faults.point("forward")
        randomness.seed_step(seed, step, self.rank)
        self._attached().remember_buffers()

    def _rehearsed(
        self, data: Samples, global_batch: int, seed: int, collate: Callable[[list[Any]], Any] | None
    ) -> Iterator[tuple[int, Any]]:
        """Real batches of about the size that this rank will see, then out of user code."""
        expected = self._settings.expected_world_size
        size = -(-global_batch // expected) if expected else min(global_batch, _LARGEST_REHEARSED_BATCH)
        batches = Batches(data, global_batch=size, seed=seed, collate=collate)
        for step in range(_REHEARSED_STEPS):
            randomness.seed_step(seed, step, 0)
            yield step, batches.at(step * size, 0, 1)
        raise RehearsalOver

    def _reduce_and_vote(self, loss: float | None) -> float | None:
        """Collectives, in order: the gradients of parameters that no DDP reduces; then the vote."""
        place = self._place
        if not self.rehearsing and self._membership.has_failed_collective:
            raise CollectiveFailed  # user code has swallowed the error: the gradient is not in hand, and must not be said to be
        faults.point("all-reduce")
        average_gradients(self._attached().unwrapped_parameters(), place.world_size)
        self._membership.check_accelerator()
        place.is_reduced = True
        faults.point("after-reduce")
        done = place.step + 1
        asks = self._checkpoints.asks(done, place.rank, is_last=done >= self._until) if self._checkpoints else Asks()
        told = [1.0, float(place.step), loss or 0.0, float(loss is not None), *asks.as_numbers()]
        ayes, steps, total, losses, *asked = self._vote(told)
        if ayes != place.world_size or steps != place.step * place.world_size:
            message = f"the vote of step {place.step} counted {ayes:g} ranks and steps that sum to {steps:g}"
            raise CollectiveFailed(message)
        mean = total / place.world_size if losses == place.world_size else None
        self._prepare_update(mean, asked)
        faults.point("before-update")
        return mean

    @staticmethod
    def _vote(told: list[float]) -> list[float]:
        """The sums of what all ranks tell. It is the vote on the step, and carries their wishes to save it: no other collective does."""
        vote = torch.tensor(told, dtype=torch.float64)
        work = dist.all_reduce(vote, async_op=True)
        faults.point("vote")
        if work is not None:
            work.wait()
        sums: list[float] = vote.tolist()
        return sums

    def _prepare_update(self, mean: float | None, asked: list[float]) -> None:
        """All ranks have voted: what becomes of the step, and nothing reads the state from here on."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return
        checkpoints.settle()
        if words := checkpoints.blame(self._place.step, mean, self._place.generation):
            self._membership.give_up_state(words)
        self._wanted = checkpoints.decide(asked, mean)

    def _save(self, seconds: float) -> None:
        place, checkpoints, wanted = self._place, self._checkpoints, self._wanted
        self._wanted = Wanted()
        if checkpoints is not None:
            checkpoints.committed(wanted, place, seconds)

    def _tell_progress(self, loss: float | None) -> float:
        """Returns the seconds since the step before."""
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        place, watcher = self._place, self._membership.watcher
        if watcher is None:
            return seconds
        watcher.stands_at(place.generation, place.step)
        told = {"generation": place.generation, "step": place.step - 1, "seconds": seconds, "at": time.time(), "loss": loss}
        place.recent = [*place.recent[1 - _RETOLD_STEPS :], told]
        if place.rank == 0:
            watcher.tell(ToAgent.PROGRESS, **told)
        return seconds


class Update:
    """The context of one update. The body must not communicate: everything in it is applied or, if this process dies, is not."""

    def __init__(self, run: Run, step: int, loss: torch.Tensor | float | None) -> None:
        self._run = run
        self._step = step
        self._told = loss
        self.loss: float | None = None
        """The mean loss over the ranks, from the vote on."""

    def __enter__(self) -> Self:
        told = self._told.detach().item() if isinstance(self._told, torch.Tensor) else self._told
        self.loss = self._run.reduce_and_vote(self._step, told)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._run.commit(self.loss)
        else:
            self._run.tear()
