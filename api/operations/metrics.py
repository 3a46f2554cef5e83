"""What the control plane can be watched by: facts of all teams, in ten queries however many jobs and nodes there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Text, cast, func, literal, select, union_all
from sqlalchemy.orm import Session

from api.operations.jobs import views
from models.checkpoint import queries
from models.checkpoint.states import CopyState
from models.checkpoint.table import CheckpointCopy, CheckpointNamespace, MemoryTier
from models.job.ledger import ACCOUNTS
from models.job.states import ENDED, JobState
from models.job.table import Job
from models.node.states import NodeState
from models.node.table import Node

FAMILIES: Mapping[str, str] = {
    "everstep_age_of_last_durable_step_seconds": "Since the newest durable step of a live job was committed to the object store; "
    "since the job began where there is none.",
    "everstep_last_durable_step": "The newest step of a live job in the object store.",
    "everstep_memory_tier_allocated_bytes": "Memory that a node's tier may take; 0 when it is off.",
    "everstep_memory_tier_used_bytes": "What shards and segments in reserve take of it.",
    "everstep_memory_tier_backlog_bytes": "What waits on a node to be written to the object store.",
    "everstep_memory_tier_store_is_out": "1 while a node cannot reach the object store.",
    "everstep_memory_tier_refusals": "Shards for which a node's tier had no room, since its process began.",
    "everstep_checkpoint_copies": "Copies of shards on nodes, by what has become of them; those long gone are forgotten.",
    "everstep_job_account_seconds": "Where the seconds of a live job's accelerators went, to exactly one account each; of nodes where there are none.",
    "everstep_jobs": "Jobs by state.",
    "everstep_nodes": "Nodes by state, without those that are gone.",
}
"""Name → help. All are gauges: what is counted here may fall, when rows go or a tier begins anew."""


@dataclass(frozen=True)
class Sample:
    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def samples(session: Session, *, now: datetime) -> list[Sample]:
    """Of every family of the table, for a session that is bound to no team."""
    return [*_of_jobs(session, now), *_of_accounts(session, now), *_of_tiers(session), *_of_copies(session), *_by_state(session)]


def _of_jobs(session: Session, now: datetime) -> Iterator[Sample]:
    saving = select(CheckpointNamespace.name, Job.id, Job.started_at).join(Job, Job.id == CheckpointNamespace.job_id)
    live = session.execute(
        saving.where(Job.state.not_in(ENDED), Job.started_at.is_not(None)).order_by(CheckpointNamespace.name)
    ).all()
    durable = queries.newest_durable(session, [row.name for row in live])
    for row in live:
        step, since = durable.get(row.name, (None, row.started_at))
        labels = {"job": row.id, "namespace": row.name}
        yield Sample("everstep_age_of_last_durable_step_seconds", max(0.0, (now - since).total_seconds()), labels)
        if step is not None:
            yield Sample("everstep_last_durable_step", step, labels)


def _of_accounts(session: Session, now: datetime) -> Iterator[Sample]:
    live = session.scalars(select(Job).where(Job.state.not_in(ENDED), Job.started_at.is_not(None)).order_by(Job.id)).all()
    for view in views(session, live):
        books = view.books(now)
        for account in ACCOUNTS:
            yield Sample("everstep_job_account_seconds", books.of(account) / 1e6, {"job": view.job.id, "account": account.value})


def _of_tiers(session: Session) -> Iterator[Sample]:
    told = select(MemoryTier, Node.instance_id).join(Node, Node.id == MemoryTier.node_id).where(Node.state != NodeState.GONE)
    for tier, instance_id in session.execute(told.order_by(Node.instance_id)):
        labels = {"node": instance_id or tier.node_id}
        yield Sample("everstep_memory_tier_allocated_bytes", tier.allocated_bytes, labels)
        yield Sample("everstep_memory_tier_used_bytes", tier.used_bytes, labels)
        yield Sample("everstep_memory_tier_backlog_bytes", tier.backlog_bytes, labels)
        yield Sample("everstep_memory_tier_store_is_out", float(tier.outage is not None), labels)
        yield Sample("everstep_memory_tier_refusals", tier.refusals, labels)


def _of_copies(session: Session) -> Iterator[Sample]:
    counted = session.execute(select(CheckpointCopy.state, func.count()).group_by(CheckpointCopy.state))
    found = {CopyState(state): int(number) for state, number in counted}
    for state in CopyState:
        yield Sample("everstep_checkpoint_copies", found.get(state, 0), {"state": state.value})


def _by_state(session: Session) -> Iterator[Sample]:
    jobs = select(literal("everstep_jobs"), cast(Job.state, Text), func.count()).group_by(Job.state)
    nodes = (
        select(literal("everstep_nodes"), cast(Node.state, Text), func.count())
        .where(Node.state != NodeState.GONE)
        .group_by(Node.state)
    )
    rows: Any = session.execute(union_all(jobs, nodes)).all()
    found = {(str(row[0]), str(row[1])): int(row[2]) for row in rows}
    families = (("everstep_jobs", JobState), ("everstep_nodes", NodeState))
    for name, states in families:
        for state in states:
            if state is not NodeState.GONE:
                yield Sample(name, found.get((name, state.value), 0), {"state": state.value})
