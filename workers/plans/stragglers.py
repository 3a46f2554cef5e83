"""Ranks that hold the others up, where the job file has them replaced: who takes them over, and when. Pure.

* A rank is handed over only where a spare stands ready on a node on which nobody is slow: nothing is started for it. Of a node's ranks only the
  slow one goes.
* One at a time, and not soon after another. A job whose every node is slow in turn comes to rest: a spare on a slow node takes no rank over, and a
  rank that is slow wherever it runs stays.
* Somebody who holds the state always stays a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from models.job.states import ProcessState
from workers.plans import slow
from workers.plans.job_seen import GenerationSeen, JobSeen, LagSeen, NodeSeen, ProcessSeen, Publish
from workers.plans.leaving import NOBODY, Leave

CAUSE = "A rank holds the others up"
"""With these words begins the cause of a generation in which a slow rank has been replaced."""


def relieve(seen: JobSeen, generation: GenerationSeen, idle: Sequence[ProcessSeen], now: datetime, *, recruited: int = 0) -> Leave:
    """For a generation that has formed, and that nobody is about to leave. ``recruited`` of the ``idle`` are no spares."""
    current = frozenset(one for one in generation.members if seen.by_id[one].reformed == generation.number)
    found = [(process, lag) for process, lag in slow.misplaced(seen) if process.id in current]
    if not found or len(current) <= 1 or len(idle) <= recruited:
        return NOBODY
    since = seen.straggler_replaced_at
    rest = timedelta(0) if since is None else since + seen.patience.straggler - now
    if rest > timedelta(0):
        return Leave(again_in=rest)
    bad = slow.slow_nodes(seen)
    ready = [process for process in idle if process.node not in bad and _takes_over(process, seen.nodes[process.node])]
    if not ready:
        return NOBODY
    straggler, lag = max(found, key=lambda one: (one[1].own_s, one[0].id))
    successor = min(ready, key=lambda one: (one.local_rank != straggler.local_rank, seen.nodes[one.node].age, one.id))
    members = tuple(successor.id if one == straggler.id else one for one in generation.members)
    return Leave(Publish(members, _cause(straggler, lag, successor)), moved=1)


def _takes_over(process: ProcessSeen, node: NodeSeen) -> bool:
    return process.state is ProcessState.READY and node.can_be_told and node.leave_why is None


def _cause(straggler: ProcessSeen, lag: LagSeen, successor: ProcessSeen) -> str:
    takes = f"rank {lag.rank} needs {lag.own_s * 1000:.0f} ms for its part of a step, they need {lag.others_s * 1000:.0f} ms"
    return f"{CAUSE}: {takes}. {successor.id} on node {successor.node} takes over from {straggler.id} on node {straggler.node}."
