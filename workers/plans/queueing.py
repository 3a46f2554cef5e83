"""Jobs that wait for nodes: placed whole or not at all, and how long what is left of a gang keeps what it has. Pure.

A lost node's place belongs to its gang for a while (``Await`` keeps it). When none has come by then and another job waits for what the gang still
holds, a gang that can shrink no further gives everything back, provided that it can start again: from the beginning, or from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from models.job.elastic import told
from models.job.states import JobState
from workers.plans import elastic, placement
from workers.plans.decision import Decision
from workers.plans.job_seen import Action, Await, GiveUp, JobSeen, Move, Resize, Say, Start

_POLL = timedelta(seconds=5)


def place(seen: JobSeen) -> Decision[Action]:
    """Starts a queued job when enough nodes are free, all at once."""
    free = placement.free_nodes(seen)
    replicas = seen.replicas if seen.elastic is None else elastic.at_start(seen.elastic, len(free))
    if replicas is None or len(free) < replicas:
        kept = len(placement.spare_nodes(seen))
        besides = f"; {kept} more are kept as spares" if kept else ""
        why = f"Waits for {_least(seen)}; {len(free)} are ready and free{besides}."
        return Decision((Say(why),) if seen.why != why else (), _POLL)
    chosen = free[: replicas + seen.spares]
    slots = tuple((node.id, local_rank) for node in chosen for local_rank in range(seen.processes_per_node))
    why = f"Placed on {len(chosen)} nodes, {len(chosen) - replicas} of them as spares."
    resize = (Resize(replicas, why),) if replicas != seen.replicas else ()
    return Decision((*resize, Start(slots, why), Move(JobState.FORMING, why)), _POLL)


def leave(seen: JobSeen) -> Decision[Action]:
    """An evicted job's processes end; then it is in the queue again."""
    if seen.alive:
        return Decision(
            tuple(GiveUp(process.id, "the job is queued again", is_planned=True) for process in seen.alive), timedelta(0)
        )
    return Decision((Move(JobState.QUEUED, seen.why or "Its nodes were given back."),), timedelta(0))


def gives_back(seen: JobSeen, now: datetime) -> str | None:
    """Why a gang that waits for lost nodes gives back those that it has; None as long as it keeps them."""
    if not seen.awaits or seen.awaits_since is None or now - seen.awaits_since < seen.patience.repair or not seen.is_queue_behind:
        return None
    if seen.has_ever_formed and seen.checkpoint is None:
        return None
    nodes = f"{seen.awaits} node{'s' * (seen.awaits != 1)}"
    again = f", and goes on from step {seen.checkpoint.step}" if seen.checkpoint is not None else ""
    return f"No replacement for {nodes} in {seen.patience.repair}, and another job waits for those that are left: it is queued again{again}."


def withdrawn(seen: JobSeen, why: str) -> tuple[Action, ...]:
    """The way back into the queue from where the job is now. Nothing of a queued job may be alive: it would hold nodes that it waits for itself."""
    if seen.state is not JobState.FORMING:
        return (Move(JobState.EVICTING, why),)
    return (*(GiveUp(process.id, why, is_planned=True) for process in seen.alive), Move(JobState.QUEUED, why))


def with_awaits(seen: JobSeen, actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions with what is awaited said only where it has changed; a plan that awaits nothing clears it."""
    awaited = next((action.nodes for action in actions if isinstance(action, Await)), 0)
    rest = tuple(action for action in actions if not isinstance(action, Await))
    return rest if awaited == seen.awaits else (*rest, Await(awaited, f"Waits for {awaited} nodes."))


def _least(seen: JobSeen) -> str:
    if seen.elastic is None:
        return f"{seen.replicas} free nodes"
    sizes = seen.elastic.policy.sizes
    return f"{sizes[0]} free nodes, the least of its sizes ({told(sizes)})"
