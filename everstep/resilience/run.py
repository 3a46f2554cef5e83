"""What user code sees of its run: the steps, the update, and where this process stands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from everstep.checkpoint.policy import NOTHING, Asks, Wanted
from everstep.data.batches import Samples
from everstep.data.feeds import Factory
from everstep.data.supply import Origin, Wish
from everstep.elastic import share_of
from everstep.errors import CollectiveFailed, EverstepError
from everstep.local_protocol import ToAgent
from everstep.notices import Evacuation
from everstep.protocol import Source
from everstep.testing import faults

from . import randomness
from .checkpoints import Checkpoints
from .effort import EFFORT
from .feeding import Feeding
from .groups import is_waiting
from .membership import Membership
from .own_groups import Ranks
from .place import Place
from .reduction import average_gradients
from .settings import Settings
from .sick import LossGuard
from .state import State
from .unwind import PassOver, Unwind
from .update import Update
from .vitals import Vitals
from .watcher import RETOLD_STEPS

_NOTHING_SAID: Mapping[str, Any] = MappingProxyType({})
_ANY_SIZE: Mapping[int, Mapping[str, Any]] = MappingProxyType({})


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
        self.losses = LossGuard(None, membership)
        self.vitals = Vitals(membership.place, is_waiting, membership.watcher, after_s=settings.hang_after_s)
        self._scale = _ANY_SIZE
        self._is_torn = False
        self._feeding = Feeding(settings)
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

    @property
    def batch_origin(self) -> Origin:
        """Whether this step's batch was read now, was read ahead, or was there in shared memory."""
        return self._feeding.origin

    @property
    def scale(self) -> Mapping[str, Any]:
        """What ``resilient(scale=…)`` says of the world size that there is now; empty where it says nothing of it."""
        size = self._settings.expected_world_size if self.rehearsing else None
        return self._scale.get(size or self.world_size, _NOTHING_SAID)

    def weight(self, tokens: float) -> float:
        """What a *sum* of losses over this rank's tokens is to be divided by. A collective: every rank calls it once a step.

        Then the average of the ranks' gradients is that of the mean over all tokens of the global batch, however unevenly they are shared. It
        stands before ``backward``: a gradient that has been reduced could only be weighed by going over all of it once more. In units of ``tokens``; 1.0 when the whole batch has none.
        """
        total = torch.tensor([float(tokens)], dtype=torch.float64)
        if self.world_size > 1:
            dist.all_reduce(total)
        return total.item() / self.world_size or 1.0

    def steps(
        self,
        data: Samples | Iterable[Any] | Factory,
        *,
        global_batch: int,
        until: int,
        seed: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
    ) -> Iterator[tuple[int, Any]]:
        """Yields ``(step, batch)`` from the committed step on; ``batch`` is this rank's part of the global batch, collated.

        ``data`` is a map-style dataset, an iterable of samples, or a factory ``loader(start, rank, world_size)`` of batches. Which samples a step
        sees depends on ``seed`` and on the samples consumed before it, never on the ranks. Before each step torch's, Python's and numpy's
        generators are seeded from (seed, step, rank). With ``workers`` so many threads read ahead, and what they have prepared is kept in the
        node's shared memory, where the process that takes over this rank finds it.

        Raises:
            TypeError: the data are none of the three.
            ValueError: there are workers for a factory, or the stream has no samples.
            UnsteadyData: there are workers, and reading draws random numbers from the generators that training uses.
        """
        wish = Wish(data, global_batch, self._settings.seed if seed is None else seed, collate, workers)
        wish.check()
        self._global_batch = global_batch
        if self.rehearsing:
            yield from self._feeding.rehearsed(wish)
            return
        self._step_began = time.monotonic()
        self._until = until
        with contextlib.closing(self._feeding.batches(wish, self._place, until, self._begin)) as batches:
            for step, batch in batches:
                if step in self._place.losses.passed_over:
                    self._pass_over(None)
                else:
                    yield step, batch
        self.is_in_step = False
        self.vitals.rest()

    def aside(self, limit_s: float | None = None) -> AbstractContextManager[None]:
        """``with run.aside(limit_s=1800): evaluate(model)``: work that is no part of a step and may take so long before it counts as a hang."""
        return self.vitals.aside(limit_s)

    def update(self, step: int, *, loss: torch.Tensor | float | None = None) -> Update:
        """The vote and the critical section: ``with run.update(step, loss=loss): optimizer.step(); …``.

        ``loss``, if given, is the one that ``backward`` was called on; its mean over the ranks is reported with the step.
        """
        return Update(self, step, loss)

    def group(self, name: str, ranks: Ranks = None) -> dist.ProcessGroup:
        """A process group of the user's own: the same object for ever, whose members, rank and size are those of the current generation.

        ``ranks`` is a list, or a function of (rank, world size) that gives the ranks of the group which that rank is in; without it, all ranks
        are in it. To be asked for by every rank, in the same order, inside the training function or before it.
        """
        return self._membership.group(f"own/{name}", ranks)

    def mesh(self, shard: int | None = None, *, replicate_every: int = 1, device_type: str = "cpu") -> DeviceMesh:
        """The mesh for ``fully_shard(module, mesh=run.mesh())``: its size is the number of shards, also when ranks come and go.

        Without ``shard`` there is one shard a rank, and each rank gives a copy of its shard to another process after each ``replicate_every`` th
        step: no more steps can be lost than lie between two. With ``shard`` there are ``world size // shard`` replicas of the model, and
        gradients are averaged over them as well; a dead rank's shard comes from another replica, and copies are given away only while there is one.

        Raises:
            ShardsDoNotFit: the run has a mesh of another number of shards already.
        """
        return self._membership.mesh(shard, replicate_every, device_type)

    # ------------------------------------------------------------ for resilient

    def attach(self, state: State, scale: Mapping[int, Mapping[str, Any]] = _ANY_SIZE) -> None:
        faults.hook(state.model, state.optimizer)
        self._state = state
        self._scale = scale
        self._membership.attach(state)

    def join(self) -> Source | None:
        """Joins the newest generation, as ``Membership.join``: before that no save reads the state any more."""
        self.is_in_step = False
        self.vitals.rest()
        if self._checkpoints is not None:
            self._checkpoints.interrupted()
        source = self._membership.join(self._attached())
        self._is_torn = False
        return source

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
        except PassOver as sick:
            self._pass_over(sick.loss)
            self._membership.has_joined = True
            raise
        except (Unwind, EverstepError, RuntimeError) as error:
            if self.rehearsing or not (isinstance(error, Unwind) or self._membership.has_lost_generation):
                raise
        left = time.monotonic()
        source = self.join()
        self._step_began += time.monotonic() - left  # the step that is gone on with did not take that long
        if source is Source.ROLLED_FORWARD and self.losses.judge(place.last_loss) is None:
            self._wanted = NOTHING
            return place.last_loss
        if source is Source.ROLLED_FORWARD:
            self._pass_over(place.last_loss)  # as those did who had finished it
        if source is not None:
            self._membership.has_joined = True
        raise Unwind

    def commit(self, loss: float | None) -> None:
        self._attached().settle_step()
        self._advance(loss)
        if not self.rehearsing:
            self.losses.accept(loss)
            progress = self._noted(loss)
            self._membership.committed(self._attached())
            self._tell(progress)
            self._save(progress["seconds"])
            self.vitals.committed()
            faults.point("after-update")

    def _advance(self, loss: float | None) -> None:
        place = self._place
        place.step += 1
        place.consumed += self._global_batch
        place.position = self._feeding.part.position
        place.is_reduced = self._is_torn = False
        place.last_loss = loss

    def _pass_over(self, loss: float | None) -> None:
        """The step counts as done, and nothing of it is applied."""
        self._attached().abandon_step()
        self._advance(loss)
        progress = self._noted(None)
        self._membership.committed(self._attached())
        self._tell(progress)
        self.vitals.committed()

    def tear(self) -> None:
        """An update was left half-way: this process's state is no longer that of any step."""
        self._is_torn = True
        self._place.holds_state = False

    def give_up_step(self) -> None:
        """User code has left the step by an error: whatever of it is in hand is not gone on with."""
        place = self._place
        place.is_reduced = False
        if self._is_torn:
            place.holds_state = False

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
        self.vitals.begun()
        faults.stand(self.rank, step, self.generation)
        faults.point("forward")
        randomness.seed_step(seed, step, self.rank)
        self._attached().remember_buffers()

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
        if not self.rehearsing:
            self._membership.await_replica()
        done = place.step + 1
        asks = self._checkpoints.asks(done, place.rank, is_last=done >= self._until) if self._checkpoints else Asks()
        own_s = EFFORT.seconds()
        told = [1.0, float(place.step), loss or 0.0, float(loss is not None), own_s, *asks.as_numbers()]
        ayes, steps, total, losses, all_s, *asked = self._vote(told)
        if ayes != place.world_size or steps != place.step * place.world_size:
            message = f"the vote of step {place.step} counted {ayes:g} ranks and steps that sum to {steps:g}"
            raise CollectiveFailed(message)
        if not self.rehearsing:
            self._membership.moves.forget_others()
            self.vitals.compare(own_s, all_s)
        mean = total / place.world_size if losses == place.world_size else None
        self._prepare_update(mean, asked)
        faults.point("before-update")
        return mean

    def _vote(self, told: list[float]) -> list[float]:
        """The sums of what all ranks tell. It is the vote on the step, and carries their wishes to save it: no other collective does."""
        votes = self._membership.votes
        votes.cast(told)
        faults.point("vote")
        return votes.count()

    def _prepare_update(self, mean: float | None, asked: list[float]) -> None:
        """All ranks have voted: what becomes of the step, and nothing reads the state from here on."""
        checkpoints, verdict = self._checkpoints, None if self.rehearsing else self.losses.judge(mean)
        if checkpoints is not None:
            with self.vitals.aside():
                checkpoints.settle()
        if verdict is not None and verdict.action != "stop":
            self.losses.react(verdict)
        if checkpoints is not None and (words := checkpoints.blame(self._place.step, mean, self._place.generation)):
            self._membership.give_up_state(words)
        if verdict is not None:
            self.losses.react(verdict)
        if checkpoints is not None:
            self._wanted = checkpoints.decide(asked, mean)

    def _save(self, seconds: float) -> None:
        place, checkpoints, wanted = self._place, self._checkpoints, self._wanted
        self._wanted = Wanted()
        if checkpoints is not None:
            with self.vitals.aside():
                checkpoints.committed(wanted, place, seconds)
            if wanted:
                faults.point("save")

    def _noted(self, loss: float | None) -> dict[str, Any]:
        """What is told of the step that was just committed. It goes with the state from here on: who takes over from rank 0 tells it, too."""
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        place = self._place
        stall_s = self._checkpoints.take_stall() if self._checkpoints else 0.0
        told = {"generation": place.generation, "step": place.step - 1, "seconds": seconds, "at": time.time(), "loss": loss}
        told["stall_s"] = stall_s
        place.recent = [*place.recent[1 - RETOLD_STEPS :], told]
        return told

    def _tell(self, progress: dict[str, Any]) -> None:
        place, watcher = self._place, self._membership.watcher
        if watcher is not None:
            watcher.stands_at(place.generation, place.step)
        if watcher is not None and place.rank == 0:
            watcher.tell(ToAgent.PROGRESS, **progress)
