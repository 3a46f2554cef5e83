"""Ranks on nodes that are about to go: who takes them over, and when. Pure.

* Whoever has a deadline is handed over as soon as a process elsewhere is ready for each such rank; when little time is left, those for whom there
  is one. Without any, training goes on until the deadline, and what follows is that of a lost node.
* A mere recommendation moves a rank only where a spare stands ready anyway: nothing is started for it.
* Somebody who holds the state always stays a member. Where the one that leaves is the only one, it trains on until little time is left, and its
  successor begins from the newest checkpoint that is kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from everstep.notices import LEAVING_CAUSE
from models.job.states import ProcessState
from workers.plans import placement, resuming
from workers.plans.decision import soonest
from workers.plans.job_seen import GenerationSeen, JobSeen, NodeSeen, ProcessSeen, Publish


@dataclass(frozen=True)
class Leave:
    """``publish`` is the generation without those that leave, ``moved`` how many it hands over.

    ``needed`` processes are to be started for ranks that nobody can take over yet; ``reserved`` of those that play no rank will.
    """

    publish: Publish | None = None
    needed: int = 0
    reserved: int = 0
    waits: str | None = None
    again_in: timedelta | None = None
    moved: int = 0


NOBODY = Leave()


def is_idle(found: Leave) -> bool:
    """Whether nobody is on the way from one place to another."""
    return found.publish is None and not (found.needed or found.reserved or found.waits)


def leave(
    seen: JobSeen,
    generation: GenerationSeen,
    alive: Sequence[ProcessSeen],
    idle: Sequence[ProcessSeen],
    now: datetime,
    *,
    is_formed: bool,
) -> Leave:
    """``alive`` are all members, ``idle`` the processes besides that count."""
    leavers = [process for process in alive if _node(seen, process).leave_why is not None and process.state is ProcessState.READY]
    if not leavers:
        return NOBODY
    musts = sorted((one for one in leavers if _deadline(seen, one)), key=lambda one: (_deadline(seen, one), one.id))
    rest = min((_rest(seen, process, now) for process in musts), default=timedelta.max)
    is_urgent = rest <= timedelta(0)
    if not is_formed and not is_urgent:
        return Leave(again_in=rest if musts else None)  # whoever joins wakes the job
    others = [process for process in leavers if process not in musts]
    ready = [process for process in idle if process.state is ProcessState.READY and _takes_over(_node(seen, process))]
    chosen = placement.substitutes(seen, [*musts, *others], ready)
    moved = _moved(musts, others, chosen, is_urgent=is_urgent)
    found = _handed_over(seen, generation, alive, moved, chosen, is_urgent=is_urgent)
    if found is not None:
        return found
    warming = [process for process in idle if _takes_over(_node(seen, process))]
    waits = _waits(seen, generation, musts, is_short=len(warming) < len(musts))
    reserved = min(len(musts), len(warming))
    return Leave(
        needed=len(musts) - reserved, reserved=reserved, waits=waits, again_in=soonest(None if is_urgent or not musts else rest)
    )


def _moved(
    musts: list[ProcessSeen], others: list[ProcessSeen], chosen: dict[str, ProcessSeen], *, is_urgent: bool
) -> list[ProcessSeen]:
    """Those that go over now. Of a node that need not go all ranks do, or none: half of it would be left where it was."""
    left = {process.node for process in others if process.id not in chosen}
    by_choice = [process for process in others if process.node not in left]
    found = [process for process in musts if process.id in chosen]
    return [*found, *by_choice] if len(found) == len(musts) or is_urgent else []


def _handed_over(
    seen: JobSeen,
    generation: GenerationSeen,
    alive: Sequence[ProcessSeen],
    moved: list[ProcessSeen],
    chosen: dict[str, ProcessSeen],
    *,
    is_urgent: bool,
) -> Leave | None:
    """The generation in which others have the ranks of ``moved``; None if it must not be, or not yet."""
    resumes = None
    if moved and not _holders(alive, moved):
        moved = moved[:-1] if len(alive) > 1 else moved  # it hands its state on, and is next
        if len(alive) == 1:
            if not is_urgent or seen.checkpoint is None:
                return None
            resumes = resuming.told(seen, seen.checkpoint)
    if not moved:
        return None
    taken = {process.id: chosen[process.id].id for process in moved}
    cause = f"{LEAVING_CAUSE}: {_told(seen, generation, moved)}; others take over." + (f" {resumes}" if resumes else "")
    return Leave(Publish(tuple(taken.get(one, one) for one in generation.members), cause), moved=len(moved))


def _holders(alive: Sequence[ProcessSeen], moved: Sequence[ProcessSeen]) -> list[ProcessSeen]:
    return [process for process in alive if process.reformed and process not in moved]


def _waits(seen: JobSeen, generation: GenerationSeen, musts: list[ProcessSeen], *, is_short: bool) -> str | None:
    if not musts:
        return None
    told = _told(seen, generation, musts)
    if len(generation.members) == 1 and not is_short:
        return f"{LEAVING_CAUSE}: {told}. It trains on while it can, and goes on elsewhere from a checkpoint."
    return f"{LEAVING_CAUSE}: {told}. " + ("No other node is free." if is_short else "Waits for another process to be ready.")


def _told(seen: JobSeen, generation: GenerationSeen, leavers: Sequence[ProcessSeen]) -> str:
    said = []
    for process in leavers:
        node, deadline = _node(seen, process), _deadline(seen, process)
        by = f" by {deadline:%H:%M:%S} UTC" if deadline else ""
        said.append(f"rank {generation.members.index(process.id)}{by} ({node.leave_why})")
    return ", ".join(said)


def _rest(seen: JobSeen, process: ProcessSeen, now: datetime) -> timedelta:
    """How long nothing need be done in a hurry."""
    deadline = _deadline(seen, process)
    return timedelta.max if deadline is None else deadline - seen.patience.leaving - now


def _deadline(seen: JobSeen, process: ProcessSeen) -> datetime | None:
    return _node(seen, process).leave_by


def _takes_over(node: NodeSeen) -> bool:
    return node.can_be_told and node.leave_why is None


def _node(seen: JobSeen, process: ProcessSeen) -> NodeSeen:
    return seen.nodes[process.node]
