"""``everstep.Checkpointer``: what is saved when, for scripts inside ``resilient`` and for scripts that only know torch.distributed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from everstep.errors import EverstepError
from everstep.tiers import NamespacePlan

from . import generators, plain
from .policy import NOTHING, Policy, Schedule, Wanted, in_force
from .saving import Order, Outcome, Saver, ShardWork
from .snapshot import REST, Division, Held, Plan, divide, entries_of
from .tiers import Tiers

_log = logging.getLogger("everstep.checkpoint")


class Checkpointer:
    """Settings, and the saves of this process. Without a tier to save to it does nothing, and says so once.

    Args:
        every: steps between saves to memory; None: chosen from measured costs and the observed fault rate. The job file decides before it.
        durable_every: the same for the object store.
        keep: steps for which segments stand ready in this node's memory. What is kept is the job file's to say.
        strict: an error of a save is raised into training, at the next step. By default it is logged and told.
        grace_s: how long after SIGTERM the process may take to make its last step durable, in seconds.
        tiers: where to save; None: what the environment names.
    """

    def __init__(
        self,
        every: int | None = None,
        durable_every: int | None = None,
        *,
        keep: int = 3,
        strict: bool = False,
        grace_s: float = 20.0,
        tiers: Tiers | None = None,
    ) -> None:
        for name, value in (("every", every), ("durable_every", durable_every), ("keep", keep)):
            if value is not None and value < 1:
                message = f"{name} is {value}, but an interval is at least one step"
                raise ValueError(message)
        self.every = every
        self.durable_every = durable_every
        self.keep = keep
        self.strict = strict
        self.grace_s = grace_s
        self._tiers = tiers
        self._asked = NOTHING
        self._prepared_for: tuple[int, int] | None = None
        self._plan: Plan | None = None
        self._contents: tuple[Division, tuple[str, ...], bytes] | None = None
        self._plain: plain.Plain | None = None
        self.tell: Callable[[dict[str, Any]], None] = _no_agent
        """Hears what each save has cost, as the members of ``SavedReport``. The runtime sets it."""

    def ask(self, *, durable: bool = False) -> None:
        """Has the next step saved on all ranks, whichever rank asks; from any thread. With ``durable`` to the object store as well."""
        self._asked = self._asked | Wanted(memory=True, durable=durable)

    # ------------------------------------------------------------ plain scripts

    def newest(self) -> tuple[int, str] | None:
        """Step and save of what ``restore`` would take, None if there is nothing. All ranks must call it."""
        return self._as_plain().newest()

    def restore(self, state: Held | dict[str, Any], chosen: tuple[int, str] | None = None) -> int | None:
        """Fills ``state`` (an ``everstep.State``, or a DCP state dict, whose tensors are filled) from the newest complete step that every rank can read.

        Returns the step, or None if there is none. All ranks must call it. Generators come back where the world size has not changed.
        ``chosen`` is what ``newest`` has said, if that was asked before.
        """
        return self._as_plain().restore(state, chosen)

    def step(
        self,
        state: Held | Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        step: int,
        *,
        optimizer: Optimizer | None = None,
        is_last: bool = False,
    ) -> None:
        """To be called by all ranks after each optimizer step; ``step`` counts those that are done. Saves when it is time.

        The state is an ``everstep.State``, a DCP state dict, or what makes one when it is needed. It is copied beside the next forward and
        backward, if its optimizer is known: the ``step`` of that waits for the copy. Otherwise it is copied here. The ``is_last`` step is made
        durable whatever the intervals say.
        """
        self._as_plain().step(state, step, optimizer, is_last=is_last)

    def close(self, limit_s: float = 600.0) -> None:
        """Waits for the last save. For the end of a plain script; inside ``resilient`` it is done by itself."""
        if self._plain is not None:
            self._plain.close(limit_s)

    # ------------------------------------------------------------ for whoever drives it

    @property
    def tiers(self) -> Tiers:
        if self._tiers is None:
            self._tiers = Tiers.from_environment()
        return self._tiers

    def connect(self) -> Saver | None:
        """None if there is nowhere to save to."""
        tiers = self.tiers
        if not (tiers.has_memory or tiers.has_store):
            _log.info("Nothing is saved: neither a memory tier nor an object store is named in the environment")
            return None
        policy = in_force(_policy_of_job(tiers), Policy(self.every, self.durable_every))
        schedule = Schedule(policy, has_memory=tiers.has_memory, has_store=tiers.has_store)
        return Saver(tiers, schedule, lambda: in_force(_policy_of_job(tiers), Policy(self.every, self.durable_every)))

    def asked(self) -> Wanted:
        return self._asked

    def served(self, wanted: Wanted) -> None:
        """That much of what was asked for is being saved."""
        if wanted.durable or not (self._asked.durable and self.tiers.has_store):
            self._asked = NOTHING

    def save(
        self,
        saver: Saver,
        state: Held,
        wanted: Wanted,
        step: int,
        save: str,
        rank: int,
        world_size: int,
        cursor: dict[str, Any],
        own: Mapping[str, bytes] | None = None,
    ) -> None:
        """Begins a save of this rank's part. ``own`` are blobs of this rank: of the same names in all of them but for the rank."""
        began = time.monotonic()
        saver.make_way()
        plan = self._plan_of(state, rank, world_size)
        rest = {REST: state.pack_rest(cursor)} if rank == 0 else {}
        captured = plan.capture({**rest, **(own or {})})
        of_ranks = {generators.blob_name(other): other for other in range(world_size)} if own else {}
        contents = self._contents_of(plan.division, state, {REST: 0, **of_ranks}) if rank == 0 else None
        order = Order(step, save, rank, world_size, wanted, captured, contents)
        saver.begin(ShardWork(order, self.tiers), step, wanted, stalled_s=time.monotonic() - began)

    def tell_ended(self, saver: Saver, rank: int) -> None:
        """Tells what the last save has cost, once it has ended. Raises its error if ``strict``."""
        ended = saver.ended()
        if ended is None:
            return
        outcome, why = ended
        if rank == 0 or outcome.error is not None:
            self.tell(_told(outcome, saver.schedule, why))
        if self.strict and outcome.error is not None:
            raise outcome.error

    def prepare(self, saver: Saver, state: Held, rank: int, world_size: int) -> None:
        """Once, when the state has all its tensors (an optimizer makes its own in the first step), and again when the world has another size."""
        if self._prepared_for == (rank, world_size) or not self.tiers.has_memory:
            return
        self._prepared_for = (rank, world_size)
        nbytes = self._nbytes(state, rank, world_size)
        saver.prepare(lambda: self._reserve(rank, nbytes))

    def reserve(self, state: Held, rank: int = 0, world_size: int = 1) -> None:
        """Has segments stand ready before it returns, where the first save is to cost as little as the later ones. Otherwise it is done by itself."""
        self._prepared_for = (rank, world_size)
        self._reserve(rank, self._nbytes(state, rank, world_size))

    # ------------------------------------------------------------ inside

    def _plan_of(self, state: Held, rank: int, world_size: int) -> Plan:
        """The same as at the save before, if the state has the same tensors."""
        items = state.items()
        if self._plan is None or not self._plan.is_for(items, rank, world_size):
            self._plan = Plan(items, divide(entries_of(items), world_size), rank, state.fleeting())
        return self._plan

    def _nbytes(self, state: Held, rank: int, world_size: int) -> int:
        """Of a rank's shard, generously."""
        return divide(entries_of(state.items()), world_size).layout(rank).size + _ROOM_FOR_BLOBS

    def _reserve(self, rank: int, nbytes: int) -> None:
        try:
            self.tiers.reserve(rank, nbytes, self.keep + 1)
        except (EverstepError, OSError) as error:
            _log.warning("No segments stand ready, so the first saves take longer: %s", error)

    def _as_plain(self) -> plain.Plain:
        if self._plain is None:
            self._plain = plain.Plain(self, self.connect())
        return self._plain

    def _contents_of(self, division: Division, state: Held, blobs: dict[str, int]) -> bytes:
        """The same bytes at every save of a state whose shapes have not changed."""
        kept = self._contents
        if kept is None or kept[0] is not division or kept[1] != tuple(blobs):
            kept = (division, tuple(blobs), division.contents(blobs, state.paths()).to_json())
            self._contents = kept
        return kept[2]


_ROOM_FOR_BLOBS = 1 << 16


def _no_agent(_: dict[str, Any]) -> None:
    """A script alone has nobody to tell."""


def _policy_of_job(tiers: Tiers) -> Policy:
    """What the job file says, as the plan of the memory tier has it; as this process was told at its start, if no tier is there."""
    at_start = Policy(tiers.settings.every, tiers.settings.durable_every, tiers.settings.mtbf_s)
    try:
        told = tiers.status().get("policy")
    except (EverstepError, OSError) as error:
        _log.warning("The memory tier was not asked for the job's intervals: %s", error)
        return at_start
    if not told:
        return at_start
    plan = NamespacePlan.from_wire(told)
    return Policy(plan.memory_every, plan.durable_every, plan.mtbf_s)


def _told(outcome: Outcome, schedule: Schedule, why: str | None) -> dict[str, Any]:
    return {
        "step": outcome.step,
        "stall_s": outcome.stall_s,
        "seconds": outcome.seconds,
        "nbytes": outcome.nbytes,
        "memory_every": schedule.memory_every,
        "durable_every": schedule.durable_every,
        "why": why,
    }
