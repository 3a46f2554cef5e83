"""Checkpoints of a script that knows torch.distributed and nothing of ``resilient``, or neither: saves and restores by two calls.

Collectives, in this order, in every rank: at first use one group is made and it is gathered what each rank can do, and rank 0's word for the saves
and the intervals; each ``restore`` gathers what the ranks see, and what they could read; each ``step`` starts one small all-reduce, and the next ``step`` waits for it. So what one rank asks for (an automatic interval, a
SIGTERM, ``Checkpointer.ask``) is saved one step later, by all of them. Fixed intervals need no word. State dicts add those of ``direct``.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from everstep.errors import CheckpointMismatch, CheckpointUnreadable, EverstepError, TierAway

from . import direct, generators
from .loading import Loaded, load
from .policy import NOTHING, Asks, Policy, Wanted, decided
from .signals import Leaving
from .snapshot import Held
from .torch_parts import local_of

if TYPE_CHECKING:
    from .checkpointer import Checkpointer
    from .saving import Saver

_log = logging.getLogger("everstep.checkpoint")
_MOST_CANDIDATES = 16
_OWN = "everstep"
"""Under this key of a state dict lies what is ours."""

StateDict = Mapping[str, Any]


class Plain:
    """The saves of one process of such a script. ``saver`` is None where there is nowhere to save to."""

    def __init__(self, checkpointer: Checkpointer, saver: Saver | None) -> None:
        self._checkpointer = checkpointer
        self._saver = saver
        self._met_in = 0
        self._is_leaving = False
        self._ranks = _Ranks()
        self._vote: _Vote | None = None
        self._paced: set[int] = set()
        self._stepped_at = time.monotonic()
        self._leaving = Leaving(checkpointer.grace_s, lambda: True)
        if saver is not None:
            self._leaving.install()

    def newest(self) -> tuple[int, str] | None:
        """Step and save of the newest complete step that every rank can see."""
        return self._newest(frozenset()) if self._meet() is not None else None

    def restore(self, state: Held | dict[str, Any], chosen: tuple[int, str] | None = None) -> int | None:
        """``chosen``: what ``newest`` has said; then no older one is taken instead."""
        saver = self._meet()
        passed: dict[tuple[int, str], str] = {}
        found = chosen or (self._newest(frozenset()) if saver is not None else None)
        while saver is not None and found is not None:
            why = self._read_everywhere(state, found)
            if why is None:
                self._go_on_from(saver, found[0])
                return found[0]
            _log.warning("Step %d cannot be read by every rank, and is passed over: %s", found[0], why)
            passed[found] = why
            found = None if chosen else self._newest(frozenset(passed))
        if passed:
            message = f"no checkpoint can be read by every rank: {'; '.join(passed.values())}"
            raise CheckpointUnreadable(message)
        return None

    def step(
        self, state: Held | StateDict | Callable[[], StateDict], step: int, optimizer: Optimizer | None, *, is_last: bool
    ) -> None:
        saver = self._meet()
        if saver is None:
            return
        now = time.monotonic()
        saver.stepped(now - self._stepped_at)
        self._stepped_at = now
        self._checkpointer.tell_ended(saver, self._ranks.rank)
        wanted = self._agreed(saver, step) | saver.schedule.fixed(step)
        is_leaving = (
            self._is_leaving
        )  # not one that was told so since: of that the others have not heard, and the step may not be durable
        if is_last:
            wanted = wanted | saver.schedule.urgently()
        if wanted:
            self._save(saver, state, wanted, step, optimizer)
        elif not (callable(state) or isinstance(state, Mapping)):
            self._checkpointer.prepare(saver, state, self._ranks.rank, self._ranks.world_size)
        self._cast_vote(saver, step + 1)
        if is_leaving:
            self.close(self._leaving.grace_s)
            self._leaving.leave()

    def close(self, limit_s: float) -> None:
        if self._saver is None:
            return
        self._saver.settle()
        self._saver.flush(limit_s, durable=True)
        self._checkpointer.tell_ended(self._saver, self._ranks.rank)

    def _meet(self) -> Saver | None:
        """The saver, if every rank can save. A collective at first use: what one rank would do without the others would leave them waiting."""
        if self._met_in == self._ranks.world_size:
            return self._saver
        self._met_in = self._ranks.world_size
        able = self._saver is not None
        tiers, policy = self._checkpointer.tiers, self._saver.schedule.policy if self._saver else Policy()
        mine = _Able(able and tiers.has_memory, able and tiers.has_store, policy, secrets.token_hex(8))
        told: list[_Able] = self._ranks.gather(mine)
        has_memory, has_store = all(one.has_memory for one in told), all(one.has_store for one in told)
        self._ranks.save_name = told[0].save_name
        if self._saver is not None and not (has_memory or has_store):
            _log.warning("Nothing is saved: not every rank's environment names a memory tier, or an object store")
            self._saver = None
        if self._saver is not None:
            self._saver.schedule.agree(told[0].policy, has_memory=has_memory, has_store=has_store)
        return self._saver

    # ------------------------------------------------------------ saving

    def _agreed(self, saver: Saver, step: int) -> Wanted:
        """What the ranks have agreed on in the step before. Alone nobody need be waited for."""
        if self._ranks.world_size == 1:
            self._cast_vote(saver, step)
        return self._vote.result() if self._vote else NOTHING

    def _cast_vote(self, saver: Saver, step: int) -> None:
        """On what becomes of that step; after the save of the one before has begun, or it would be wanted twice."""
        wanted, self._is_leaving = self._checkpointer.asked(), self._leaving.is_asked
        asks = saver.asks(step, decides=self._ranks.rank == 0, wanted=wanted, is_urgent=self._is_leaving)
        self._vote = _Vote(self._ranks, asks)

    def _save(
        self,
        saver: Saver,
        state: Held | StateDict | Callable[[], StateDict],
        wanted: Wanted,
        step: int,
        optimizer: Optimizer | None,
    ) -> None:
        saver.settle()
        self._checkpointer.served(wanted)
        if callable(state) or isinstance(state, Mapping):
            self._save_dict(saver, state() if callable(state) else state, wanted, step, optimizer)
        else:
            self._save_held(saver, state, wanted, step)
            optimizer = optimizer or cast(Optimizer | None, getattr(state, "optimizer", None))
        if not self._is_paced(saver, optimizer):
            saver.settle()

    def _save_held(self, saver: Saver, state: Held, wanted: Wanted, step: int) -> None:
        own = {generators.blob_name(self._ranks.rank): generators.pack()}
        save = self._ranks.save_name
        rank, world_size = self._ranks.rank, self._ranks.world_size
        self._checkpointer.save(saver, state, wanted, step, save, rank, world_size, {"step": step}, own)

    def _save_dict(self, saver: Saver, state: StateDict, wanted: Wanted, step: int, optimizer: Optimizer | None) -> None:
        if _OWN in state:
            message = f"the state dict has a key {_OWN!r}, under which Everstep keeps its own"
            raise CheckpointMismatch(message)
        began = time.monotonic()
        saver.make_way()
        own = {str(self._ranks.rank): generators.pack(), "world_size": self._ranks.world_size}
        work = _DictWork({**state, _OWN: own}, step, wanted, self._checkpointer, optimizer)
        saver.begin(work, step, wanted, stalled_s=time.monotonic() - began)

    def _is_paced(self, saver: Saver, optimizer: Optimizer | None) -> bool:
        """Whether the optimizer waits for the copy before it changes anything."""
        if not isinstance(optimizer, Optimizer):
            return False
        if id(optimizer) not in self._paced:
            optimizer.register_step_pre_hook(lambda *_: saver.settle())
            self._paced.add(id(optimizer))
        return True

    # ------------------------------------------------------------ restoring

    def _newest(self, passed: frozenset[tuple[int, str]]) -> tuple[int, str] | None:
        """Raises TierAway, on all ranks, if one of them cannot ask."""
        seen: set[tuple[int, str]] | str
        try:
            seen = {(one.step, one.save) for one in self._checkpointer.tiers.latest(_MOST_CANDIDATES)}
        except (EverstepError, OSError) as error:
            seen = f"rank {self._ranks.rank}: {error}"
        told = self._ranks.gather(seen)
        if troubles := [one for one in told if isinstance(one, str)]:
            raise TierAway("; ".join(troubles))
        common: set[tuple[int, str]] = set.intersection(*told)
        return max(common - passed, default=None)

    def _read_everywhere(self, state: Held | dict[str, Any], found: tuple[int, str]) -> str | None:
        """None if every rank has filled its state; else why one could not. What an older step would not mend is raised, on all ranks."""
        error: Exception | None = None
        try:
            self._read(state, *found)
        except Exception as one:  # noqa: BLE001  (raised here, on one rank, it would leave the others waiting)
            error = one
        words = None if error is None else f"rank {self._ranks.rank}: {error}"
        told = self._ranks.gather(
            (words, error is None or isinstance(error, CheckpointUnreadable))
        )  # nobody supersedes what another still reads
        if error is not None and not all(would_mend for _, would_mend in told):
            raise error
        if hard := [why for why, would_mend in told if not would_mend]:
            message = f"another rank cannot go on from step {found[0]}: {'; '.join(hard)}"
            raise CheckpointMismatch(message)
        return "; ".join(why for why, _ in told if why is not None) or None

    def _read(self, state: Held | dict[str, Any], step: int, save: str) -> None:
        if isinstance(state, dict):
            self._restore_dict(state, step)
        else:
            self._restore_generators(load(self._checkpointer.tiers, state, step, save, generators_of=self._ranks.rank))

    def _go_on_from(self, saver: Saver, step: int) -> None:
        if self._ranks.rank == 0:
            self._checkpointer.tiers.discard(step)
        saver.schedule.begins_at(step)
        _log.warning("Going on from the checkpoint of step %d", step)

    def _restore_dict(self, state: dict[str, Any], step: int) -> None:
        tiers = self._checkpointer.tiers
        counted: dict[str, Any] = {_OWN: {"world_size": 0}}
        if direct.load(counted, step, tiers=tiers) is None:
            message = f"step {step} can no longer be read: it is complete in no tier any more"
            raise CheckpointUnreadable(message)
        if counted[_OWN]["world_size"] != self._ranks.world_size:
            _log.warning("Random numbers begin anew: %s ranks saved, not %d", counted[_OWN]["world_size"], self._ranks.world_size)
            direct.load(state, step, tiers=tiers)
            return
        whole = {**state, _OWN: {str(self._ranks.rank): b""}}
        direct.load(whole, step, tiers=tiers)
        generators.unpack(whole.pop(_OWN)[str(self._ranks.rank)])
        state.update(whole)

    def _restore_generators(self, loaded: Loaded) -> None:
        if loaded.world_size != self._ranks.world_size:
            _log.warning("Random numbers begin anew: %d ranks saved, %d go on", loaded.world_size, self._ranks.world_size)
        elif loaded.generators is not None:
            generators.unpack(loaded.generators)


class _DictWork:
    """A state dict: ``direct`` plans in the training thread and copies in one of its own."""

    def __init__(
        self, state: StateDict, step: int, wanted: Wanted, checkpointer: Checkpointer, optimizer: Optimizer | None
    ) -> None:
        self._saving: direct.Saving | None = None
        self._error: Exception | None = None
        is_steady = _changed_by_none_but(optimizer) if isinstance(optimizer, Optimizer) else None
        try:
            self._saving = direct.async_save(state, step, durable=wanted.durable, tiers=checkpointer.tiers, is_steady=is_steady)
        except (RuntimeError, OSError) as error:
            self._error = error

    def open(self) -> None:
        if self._error is not None:
            raise self._error

    def copy(self) -> None:
        if self._saving is not None:
            self._saving.staged.result()

    def seal(self) -> int:
        return self._saving.sealed.result().size if self._saving is not None else 0

    def abandon(self) -> None:
        """Done by who opened it."""


def _changed_by_none_but(optimizer: Optimizer) -> Callable[[torch.Tensor], bool]:
    """Tells the optimizer's own tensors: they stay until its next step. Of others nobody knows; a forward changes buffers."""
    of_state = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor))
    of_groups = (parameter for group in optimizer.param_groups for parameter in group["params"])
    known = {_memory_of(tensor) for tensors in (of_groups, of_state) for tensor in tensors}
    return lambda tensor: _memory_of(tensor) in known


def _memory_of(tensor: torch.Tensor) -> int:
    return local_of(tensor).untyped_storage().data_ptr()


@dataclass(frozen=True)
class _Able:
    """What a rank says of itself at first. ``save_name``: of all saves of these processes, if it is rank 0's."""

    has_memory: bool
    has_store: bool
    policy: Policy
    save_name: str


class _Ranks:
    """The processes of the script. Its group is gloo's, of CPU tensors, and nobody else's."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        self.save_name = ""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def group(self) -> dist.ProcessGroup | None:
        if self._group is None and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        return self._group

    def gather(self, mine: Any) -> list[Any]:
        if self.world_size == 1:
            return [mine]
        everybody: list[Any] = [None] * self.world_size
        dist.all_gather_object(everybody, mine, group=self.group)
        return everybody


class _Vote:
    """One all-reduce under way."""

    def __init__(self, ranks: _Ranks, asks: Asks) -> None:
        self._sums = torch.tensor(asks.as_numbers(), dtype=torch.float64)
        self._work = dist.all_reduce(self._sums, group=ranks.group, async_op=True) if ranks.world_size > 1 else None

    def result(self) -> Wanted:
        if self._work is not None:
            self._work.wait()
        return decided(self._sums.tolist())
