"""Which processes hold a job's others up, and on which nodes. Pure; none do where the job file has it told and no more."""

from __future__ import annotations

from collections import defaultdict

from models.ids import NodeId
from workers.plans.job_seen import JobSeen, LagSeen, ProcessSeen

_OWN_WORK = 3
"""A rank that is slow on so many nodes, one after the other, has more to do than the others: no node is to blame for it."""


def laggards(seen: JobSeen) -> list[tuple[ProcessSeen, LagSeen]]:
    """Processes that held the others up in the last generation that they joined, whatever has become of them."""
    if not seen.replaces_stragglers:
        return []
    return [(one, one.lag) for one in seen.processes if one.lag is not None and one.lag.generation == one.reformed]


def misplaced(seen: JobSeen) -> list[tuple[ProcessSeen, LagSeen]]:
    """Those of them that are slow because of where they are."""
    found = laggards(seen)
    nodes: dict[int, set[NodeId]] = defaultdict(set)
    for process, lag in found:
        nodes[lag.rank].add(process.node)
    return [(process, lag) for process, lag in found if len(nodes[lag.rank]) < _OWN_WORK]


def slow_nodes(seen: JobSeen) -> frozenset[NodeId]:
    """Where a rank is slow, or was when it left."""
    return frozenset(process.node for process, _ in misplaced(seen))
