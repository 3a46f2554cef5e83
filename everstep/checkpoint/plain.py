"""Checkpoints of a script that knows torch.distributed and nothing of ``resilient``, or neither: saves and restores by two calls.

Collectives, in this order, in every rank: at first use one group is made and the save's name is spread from rank 0; each ``restore`` gathers what
the ranks see; each ``step`` starts one small all-reduce, and the next ``step`` waits for it. So what one rank asks for (an automatic interval, a
SIGTERM, ``Checkpointer.ask``) is saved one step later, by all of them. Fixed intervals need no word.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from . import generators
from .loading import Loaded, load
from .policy import NOTHING, Asks, Wanted, decided
from .signals import Leaving
from .snapshot import Held

if TYPE_CHECKING:
    from .checkpointer import Checkpointer
    from .saving import Saver

_log = logging.getLogger("everstep.checkpoint")
_MOST_CANDIDATES = 16


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

    def restore(self, state: Held) -> int | None:
        if self._saver is None:
            return None
        seen = {(one.step, one.save) for one in self._checkpointer.tiers.latest(_MOST_CANDIDATES)}
        common = set.intersection(*self._ranks.gather(seen))
        if not common:
            return None
        step, save = max(common)
        step = int(step)
        loaded = load(self._checkpointer.tiers, state, step, save, generators_of=self._ranks.rank)
        self._restore_generators(loaded)
        self._ranks.gather(None)  # nobody supersedes what another still reads
        if self._ranks.rank == 0:
            self._checkpointer.tiers.discard(step)
        self._saver.schedule.begins_at(step)
        _log.warning("Going on from the checkpoint of step %d, read from %s", step, loaded.told)
        return step

    def step(self, state: Held, step: int) -> None:
        saver = self._saver
        if saver is None:
            return
        now = time.monotonic()
        saver.stepped(now - self._stepped_at)
        self._stepped_at = now
        self._checkpointer.tell_ended(saver, self._ranks.rank)
        wanted = self._wanted(saver, step)
        if wanted:
            self._save(saver, state, wanted, step)
        if wanted.durable and self._leaving.is_asked:
            self.close(self._leaving.grace_s)
            self._leaving.leave()

    def close(self, limit_s: float) -> None:
        if self._saver is None:
            return
        self._saver.settle()
        self._saver.flush(limit_s, durable=True)
        self._checkpointer.tell_ended(self._saver, self._ranks.rank)

    # ------------------------------------------------------------ inside

    def _wanted(self, saver: Saver, step: int) -> Wanted:
        """What the ranks have agreed on in the step before, and what a fixed interval says in all of them."""
        agreed = self._vote.result() if self._vote else NOTHING
        fixed = saver.schedule.fixed(step)
        asks = saver.asks(
            step + 1, decides=self._ranks.rank == 0, wanted=self._checkpointer.asked(), is_urgent=self._leaving.is_asked
        )
        self._vote = _Vote(self._ranks, asks)
        if self._ranks.world_size == 1:
            agreed = agreed | self._vote.result()  # alone nobody need be waited for
        return agreed | fixed

    def _save(self, saver: Saver, state: Held, wanted: Wanted, step: int) -> None:
        saver.settle()
        save = self._ranks.save_name()
        cursor = {"step": step}
        own = {generators.blob_name(self._ranks.rank): generators.pack()}
        self._checkpointer.save(saver, state, wanted, step, save, self._ranks.rank, self._ranks.world_size, cursor, own)
        self._checkpointer.served()
        if not self._is_paced(saver, state):
            saver.settle()

    def _is_paced(self, saver: Saver, state: Held) -> bool:
        """Whether the optimizer waits for the copy before it changes anything."""
        optimizer = getattr(state, "optimizer", None)
        if not isinstance(optimizer, Optimizer):
            return False
        if id(optimizer) not in self._paced:
            optimizer.register_step_pre_hook(lambda *_: saver.settle())
            self._paced.add(id(optimizer))
        return True

    def _restore_generators(self, loaded: Loaded) -> None:
        if loaded.world_size != self._ranks.world_size:
            _log.warning("Random numbers begin anew: %d ranks saved, %d go on", loaded.world_size, self._ranks.world_size)
        elif loaded.generators is not None:
            generators.unpack(loaded.generators)


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
