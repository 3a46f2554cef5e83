"""Checkpoints of a script that knows torch.distributed and nothing of ``resilient``, or neither: saves and restores by two calls.

Collectives, in this order, in every rank: at first use one group is made and the save's name is spread from rank 0; each ``restore`` gathers what
the ranks see; each ``step`` starts one small all-reduce, and the next ``step`` waits for it. So what one rank asks for (an automatic interval, a
SIGTERM, ``Checkpointer.ask``) is saved one step later, by all of them. Fixed intervals need no word. State dicts add those of ``direct``.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from everstep.errors import CheckpointMismatch

from . import direct, generators
from .loading import Loaded, load
from .policy import NOTHING, Asks, Wanted, decided
from .signals import Leaving
from .snapshot import Held

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
        self._ranks = _Ranks()
        self._vote: _Vote | None = None
        self._paced: set[int] = set()
        self._stepped_at = time.monotonic()
        self._leaving = Leaving(checkpointer.grace_s, lambda: True)
        if saver is not None:
            self._leaving.install()

    def newest(self) -> tuple[int, str] | None:
        """Step and save of the newest complete step that every rank can see."""
        if self._saver is None:
            return None
        seen = {(one.step, one.save) for one in self._checkpointer.tiers.latest(_MOST_CANDIDATES)}
        common: set[tuple[int, str]] = set.intersection(*self._ranks.gather(seen))
        return max(common, default=None)

    def restore(self, state: Held | dict[str, Any], chosen: tuple[int, str] | None = None) -> int | None:
        """``chosen``: what ``newest`` has said."""
        found = chosen or self.newest()
        if self._saver is None or found is None:
            return None
        step, save = found
        if isinstance(state, dict):
            self._restore_dict(state, step)
        else:
            self._restore_generators(load(self._checkpointer.tiers, state, step, save, generators_of=self._ranks.rank))
        self._ranks.gather(None)  # nobody supersedes what another still reads
        if self._ranks.rank == 0:
            self._checkpointer.tiers.discard(step)
        self._saver.schedule.begins_at(step)
        _log.warning("Going on from the checkpoint of step %d", step)
        return step

    def step(
        self, state: Held | StateDict | Callable[[], StateDict], step: int, optimizer: Optimizer | None, *, is_last: bool
    ) -> None:
        saver = self._saver
        if saver is None:
            return
        now = time.monotonic()
        saver.stepped(now - self._stepped_at)
        self._stepped_at = now
        self._checkpointer.tell_ended(saver, self._ranks.rank)
        wanted = self._agreed(saver, step) | saver.schedule.fixed(step)
        if is_last:
            wanted = wanted | saver.schedule.urgently()
        if wanted:
            self._save(saver, state, wanted, step, optimizer)
        elif not (callable(state) or isinstance(state, Mapping)):
            self._checkpointer.prepare(saver, state, self._ranks.rank, self._ranks.world_size)
        self._cast_vote(saver, step + 1)
        if wanted and self._leaving.is_asked:
            self.close(self._leaving.grace_s)
            self._leaving.leave()

    def close(self, limit_s: float) -> None:
        if self._saver is None:
            return
        self._saver.settle()
        self._saver.flush(limit_s, durable=True)
        self._checkpointer.tell_ended(self._saver, self._ranks.rank)

    # ------------------------------------------------------------ saving

    def _agreed(self, saver: Saver, step: int) -> Wanted:
        """What the ranks have agreed on in the step before. Alone nobody need be waited for."""
        if self._ranks.world_size == 1:
            self._cast_vote(saver, step)
        return self._vote.result() if self._vote else NOTHING

    def _cast_vote(self, saver: Saver, step: int) -> None:
        """On what becomes of that step; after the save of the one before has begun, or it would be wanted twice."""
        wanted, urgent = self._checkpointer.asked(), self._leaving.is_asked
        self._vote = _Vote(self._ranks, saver.asks(step, decides=self._ranks.rank == 0, wanted=wanted, is_urgent=urgent))

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
            self._save_dict(saver, state() if callable(state) else state, wanted, step)
        else:
            self._save_held(saver, state, wanted, step)
            optimizer = optimizer or cast(Optimizer | None, getattr(state, "optimizer", None))
        if not self._is_paced(saver, optimizer):
            saver.settle()

    def _save_held(self, saver: Saver, state: Held, wanted: Wanted, step: int) -> None:
        own = {generators.blob_name(self._ranks.rank): generators.pack()}
        save = self._ranks.save_name()
        rank, world_size = self._ranks.rank, self._ranks.world_size
        self._checkpointer.save(saver, state, wanted, step, save, rank, world_size, {"step": step}, own)

    def _save_dict(self, saver: Saver, state: StateDict, wanted: Wanted, step: int) -> None:
        if _OWN in state:
            message = f"the state dict has a key {_OWN!r}, under which Everstep keeps its own"
            raise CheckpointMismatch(message)
        began = time.monotonic()
        saver.make_way()
        own = {str(self._ranks.rank): generators.pack(), "world_size": self._ranks.world_size}
        work = _DictWork({**state, _OWN: own}, step, wanted, self._checkpointer)
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

    def _restore_dict(self, state: dict[str, Any], step: int) -> None:
        tiers = self._checkpointer.tiers
        counted: dict[str, Any] = {_OWN: {"world_size": 0}}
        direct.load(counted, step, tiers=tiers)
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

    def __init__(self, state: StateDict, step: int, wanted: Wanted, checkpointer: Checkpointer) -> None:
        self._saving: direct.Saving | None = None
        self._error: Exception | None = None
        try:
            self._saving = direct.async_save(state, step, durable=wanted.durable, tiers=checkpointer.tiers)
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


class _Ranks:
    """The processes of the script. Its group is gloo's, of CPU tensors, and nobody else's."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        self._save_name = ""

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

    def save_name(self) -> str:
        """Of all saves of these processes: drawn by rank 0."""
        if not self._save_name:
            self._save_name = str(self.gather(secrets.token_hex(8))[0])
        return self._save_name


class _Vote:
    """One all-reduce under way."""

    def __init__(self, ranks: _Ranks, asks: Asks) -> None:
        self._sums = torch.tensor(asks.as_numbers(), dtype=torch.float64)
        self._work = dist.all_reduce(self._sums, group=ranks.group, async_op=True) if ranks.world_size > 1 else None

    def result(self) -> Wanted:
        if self._work is not None:
            self._work.wait()
        return decided(self._sums.tolist())
