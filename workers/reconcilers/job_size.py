"""What is seen of a job's size: how it has changed, and which free nodes are kept for jobs that have lost some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from models.ids import NodeId
from models.job.elastic import elastic_of
from models.job.states import ENDED
from models.job.table import Generation, Job
from workers.plans.job_seen import Elasticity, NodeSeen, Patience, SizeChange


@dataclass(frozen=True)
class Claim:
    """A job that waits for nodes, and the groups that it may use; none: all."""

    job: Job
    groups: frozenset[str]


def elasticity(job: Job, generations: Sequence[Generation]) -> Elasticity | None:
    """None for a job of one size."""
    policy = elastic_of(job.spec)
    if policy is None:
        return None
    per_node = job.processes_per_node
    changes = tuple(
        SizeChange(after.decided_at, len(before.members) // per_node, len(after.members) // per_node)
        for before, after in pairwise(generations)
        if len(before.members) != len(after.members)
    )
    return Elasticity(policy, job.wish, job.wished_at, job.ceiling, job.ceiling_why, changes)


def is_free_asked(job: Job) -> bool:
    """Whether the job may grow, so that it matters since when nodes are free."""
    return job.state not in ENDED and elastic_of(job.spec) is not None


def kept_for_others(
    job: Job, claims: Sequence[Claim], nodes: Mapping[NodeId, NodeSeen], own: frozenset[NodeId], now: datetime
) -> frozenset[NodeId]:
    """Free nodes that other jobs have a claim to, because theirs were lost not long ago: those who have waited longest come first.

    ``own`` nodes, on which the job has its ranks or had them a moment ago, are nobody else's.
    """
    kept: set[NodeId] = set()
    for claim in sorted(claims, key=lambda claim: (claim.job.awaits_since or now, claim.job.id)):
        if _has_run_out(claim.job, now) or not _comes_before(claim.job, job, now):
            continue
        free = [node for node in nodes.values() if node.serves and not node.is_held and node.id not in kept | own]
        usable = [node for node in free if not claim.groups or node.group in claim.groups]
        kept |= {node.id for node in sorted(usable, key=lambda node: node.age)[: claim.job.awaits]}
    return frozenset(kept)


def is_of_use(claim: Claim, nodes: Mapping[NodeId, NodeSeen], own: frozenset[NodeId]) -> bool:
    """Whether a queued job could start if it had this job's ``own`` nodes besides those that are free, and not without them."""
    usable = [node for node in nodes.values() if node.can_be_told and (not claim.groups or node.group in claim.groups)]
    policy = elastic_of(claim.job.spec)
    least = claim.job.replicas if policy is None else policy.sizes[0]
    free = sum(not node.is_held and not node.is_spare and node.id not in own for node in usable)
    return free < least <= free + sum(node.id in own for node in usable)


def spares_of_pools(pools: Mapping[str, int], nodes: Mapping[NodeId, NodeSeen], own: frozenset[NodeId]) -> frozenset[NodeId]:
    """Of each group's free nodes the newest ones, as many as its pool is to have: work is placed on the oldest first."""
    kept: set[NodeId] = set()
    for group, count in pools.items():
        free = [node for node in nodes.values() if node.group == group and node.serves and not node.is_held and node.id not in own]
        kept |= {node.id for node in sorted(free, key=lambda node: -node.age)[:count]}
    return frozenset(kept)


def _has_run_out(other: Job, now: datetime) -> bool:
    policy = elastic_of(other.spec)
    bound = Patience().repair if policy is None else max(policy.faulty, Patience().repair)
    return other.awaits_since is None or now - other.awaits_since > bound


def _comes_before(other: Job, job: Job, now: datetime) -> bool:
    """Of two that wait, the one that has waited longer."""
    return not job.awaits or ((other.awaits_since or now), other.id) < ((job.awaits_since or now), job.id)
