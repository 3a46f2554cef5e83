"""What nodes are told of their memory tiers: plans, whole and level-triggered, on the stream of directives.

What all nodes of a cluster have in common is read once for all of them (``Commons``): a plan costs its node three small queries, however many peers
it has. Nothing secret is stored for it; tokens follow from the master key.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import or_, select, union
from sqlalchemy.orm import Session

from everstep.tiers import NamespacePlan, TierPeer, TierPlan
from models import events
from models.access.secrets import namespace_token, tier_secret
from models.checkpoint.policy import policy_of
from models.checkpoint.states import CopyState, StepState
from models.checkpoint.table import CheckpointCopy, CheckpointNamespace, CheckpointStep
from models.cluster.table import Cluster
from models.events import About
from models.fault import queries as faults
from models.ids import ClusterId, NodeId
from models.job.states import ALIVE, ENDED
from models.job.table import Job, JobProcess
from models.node.states import SERVING, NodeState
from models.node.table import Node
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify_all

SETTING = "TieredStorageConfig"
"""Of a cluster, by wire name."""
LEAST_PERCENT = 20
"""Of a node's memory, and what is taken where Enable stands without a percentage."""
HOLDING = (*SERVING, NodeState.DRAINING, NodeState.DETACHING)
"""The states of a node from whose memory peers may read, and to which they may write."""
_FRESH = timedelta(seconds=1)
_NUMBER_BYTES = 6
"""Of a plan's number: 48 bits of a digest of what it says, so that the same plan has the same number, and is told once."""


@dataclass(frozen=True)
class Common:
    """What all plans of a cluster's nodes say. ``is_told``: the cluster's tier has been switched on or off, ever. ``peers`` are all its nodes."""

    percent: int | None
    is_told: bool
    peers: tuple[TierPeer, ...]
    is_store_out: bool

    @cached_property
    def wire(self) -> tuple[dict[str, Any], ...]:
        """The peers as they are written: once for all plans, because a thousand of them cost more than all else that a plan says."""
        return tuple(peer.to_wire() for peer in self.peers)

    @cached_property
    def digest(self) -> str:
        return _digest(self.wire).hex()


@dataclass
class Commons:
    """Those of the clusters whose nodes listen here, each read at most once a second; safe for threads.

    ``news`` finds what has changed since the last look, whoever changed it: nodes that come and go, the cluster's setting, an outage, and jobs that have
    ended, whose memory other nodes hold too. Without it a node would learn of its new peers when something else is new for it.
    """

    master_key: bytes = field(repr=False)
    _known: dict[ClusterId, tuple[datetime, Common]] = field(default_factory=dict)
    _looked_at: dict[ClusterId, Common] = field(default_factory=dict)
    _stirred: set[ClusterId] = field(default_factory=set)
    _since: datetime | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, session: Session, cluster_id: ClusterId, *, now: datetime) -> Common:
        with self._lock:
            at, known = self._known.get(cluster_id, (None, None))
        if at is not None and known is not None and at <= now < at + _FRESH:
            return known
        found = commons(session, [cluster_id])[cluster_id]
        with self._lock:
            before = self._looked_at.setdefault(cluster_id, found)
            if before == found:
                found = before  # with what it has written already
            else:
                self._stirred.add(cluster_id)  # some of its nodes know this one, and others what was before
            self._known[cluster_id] = (now, found)
        return found

    def news(self, session: Session, node_ids: Sequence[NodeId], *, now: datetime) -> list[NodeId]:
        """Which of these nodes may have a new plan."""
        of_node = {row.id: row.cluster_id for row in session.execute(select(Node.id, Node.cluster_id).where(Node.id.in_(node_ids)))}
        found = commons(session, set(of_node.values()))
        with self._lock:
            changed = {one for one, common in found.items() if self._looked_at.get(one, common) != common} | self._stirred
            self._stirred.clear()
            kept = {one: self._looked_at[one] if self._looked_at.get(one) == common else common for one, common in found.items()}
            self._looked_at |= kept
            self._known |= {one: (now, common) for one, common in kept.items()}
            since, self._since = self._since or now, now
        ended = set(_holders_of_ended(session, since, node_ids))
        return [node_id for node_id in node_ids if of_node.get(node_id) in changed or node_id in ended]


def commons(session: Session, cluster_ids: Collection[ClusterId]) -> dict[ClusterId, Common]:
    """What is common to all plans of these clusters, in three queries."""
    clusters = session.scalars(select(Cluster).where(Cluster.id.in_(cluster_ids))).all()
    serving = select(Node.instance_id, Node.cluster_id, Node.address, Node.facts["zone"].astext.label("zone"))
    serving = serving.where(Node.cluster_id.in_(cluster_ids), Node.state.in_(HOLDING), Node.address.is_not(None))
    serving = serving.where(Node.instance_id.is_not(None))
    nodes = session.execute(serving.order_by(Node.id)).all()
    is_out = faults.is_store_out(session)
    return {
        cluster.id: Common(
            percent=percent_of(cluster),
            is_told=SETTING in cluster.settings,
            peers=tuple(
                TierPeer(row.instance_id or "", row.address or "", row.zone or cluster.zone)
                for row in nodes
                if row.cluster_id == cluster.id
            ),
            is_store_out=is_out,
        )
        for cluster in clusters
    }


def percent_of(cluster: Cluster) -> int | None:
    """Which share of its nodes' memory a cluster gives to checkpoints; None: its tier is off."""
    config = cluster.settings.get(SETTING, {})
    return int(config.get("InstanceMemoryAllocationPercentage", LEAST_PERCENT)) if config.get("Mode") == "Enable" else None


def switch(session: Session, cluster: Cluster, *, now: datetime) -> None:
    """The memory tier of a locked cluster's nodes has another size, or is on or off from now on. Jobs go on; each node says what it gave up for it."""
    percent = percent_of(cluster)
    words = "is off; what its nodes hold is given back" if percent is None else f"takes {percent} % of each node's memory"
    text = f"The memory tier of cluster {cluster.name} {words}."
    events.record(session, "memory tier switched", text, about=About.CLUSTER, cluster_id=cluster.id, now=now)
    nodes = session.scalars(select(Node.id).where(Node.cluster_id == cluster.id, Node.state.in_(HOLDING))).all()
    if nodes:
        notify_all(session, CHANNEL, nodes)


def plan(session: Session, node_id: NodeId, common: Commons, *, now: datetime) -> TierPlan | None:
    """All that a node's memory tier is told. None: its cluster has never had one, and no job on the node saves anything."""
    made = _plan(session, node_id, common, now)
    if made is None:
        return None
    told, name, shared = made
    return replace(
        told, peers=tuple(peer for peer in shared.peers if peer.node != name) if told.allocation_percent is not None else ()
    )


def line(session: Session, node_id: NodeId, common: Commons, *, now: datetime) -> tuple[int, dict[str, Any]] | None:
    """The same plan, its number first, as it is written."""
    made = _plan(session, node_id, common, now)
    if made is None:
        return None
    told, name, shared = made
    peers = [peer for peer in shared.wire if peer["node"] != name] if told.allocation_percent is not None else []
    return told.number, told.to_wire() | {"peers": peers}


def _plan(session: Session, node_id: NodeId, common: Commons, now: datetime) -> tuple[TierPlan, str | None, Common] | None:
    """A plan without its peers, how the node calls itself, and what it has in common with the others."""
    cluster_id, name = session.execute(select(Node.cluster_id, Node.instance_id).where(Node.id == node_id)).one()
    shared = common.of(session, cluster_id, now=now)
    rows = _namespaces(session, node_id)
    if not shared.is_told and not rows:
        return None
    marks = _marks(session, [row.name for row, _ in rows])
    planned = {row.name: _planned(row, job, marks.get(row.name, Marks()), common.master_key) for row, job in rows}
    over = {row.name for row, job in rows if job.state in ENDED or job.cluster_id != cluster_id}  # nobody here saves there any more
    ended = {name for name in over if not planned[name].drain}
    own = next((peer for peer in shared.peers if peer.node == name), None)
    told = TierPlan(
        number=0,
        allocation_percent=shared.percent,
        zone=own.zone if own else None,
        secret=tier_secret(common.master_key, cluster_id),
        namespaces=tuple(found for name, found in planned.items() if name not in ended),
        ended=tuple(sorted(ended)),
        is_store_out=shared.is_store_out,
    )
    number = int.from_bytes(_digest([told.to_wire(), shared.digest]), "big")
    return replace(told, number=number), name, shared


@dataclass(frozen=True)
class Marks:
    """Steps of a namespace that nodes treat in a way of their own."""

    pinned: tuple[int, ...] = ()
    drain: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def _namespaces(session: Session, node_id: NodeId) -> list[tuple[CheckpointNamespace, Job]]:
    """Of jobs with a process on the node, and of those whose shards it holds, by name; each with its job."""
    here = select(CheckpointNamespace.name).join(JobProcess, JobProcess.job_id == CheckpointNamespace.job_id)
    here = here.where(JobProcess.node_id == node_id, JobProcess.state.in_(ALIVE))
    held = select(CheckpointStep.namespace).join(CheckpointCopy, CheckpointCopy.step_id == CheckpointStep.id)
    held = held.where(CheckpointCopy.node_id == node_id, CheckpointCopy.state == CopyState.SEALED)
    wanted = select(CheckpointNamespace, Job).join(Job, Job.id == CheckpointNamespace.job_id)
    rows = session.execute(wanted.where(CheckpointNamespace.name.in_(union(here, held))).order_by(CheckpointNamespace.name))
    return [(row, job) for row, job in rows]


def _marks(session: Session, names: Collection[str]) -> dict[str, Marks]:
    if not names:
        return {}
    marked = or_(CheckpointStep.is_pinned, CheckpointStep.is_drain_wanted, CheckpointStep.state != StepState.KEPT)
    wanted = select(CheckpointStep).where(CheckpointStep.namespace.in_(names), marked)
    steps = session.scalars(wanted.order_by(CheckpointStep.step)).all()
    return {name: _marks_of([step for step in steps if step.namespace == name]) for name in names}


def _marks_of(steps: Iterable[CheckpointStep]) -> Marks:
    kept = [step for step in steps if step.state is StepState.KEPT]
    return Marks(
        pinned=tuple(step.step for step in kept if step.is_pinned),
        drain=tuple(step.step for step in kept if step.durable_at is None),
        dropped=tuple(step.step for step in steps if step.state is not StepState.KEPT),
    )


def _planned(row: CheckpointNamespace, job: Job, marks: Marks, master_key: bytes) -> NamespacePlan:
    policy = policy_of(job.spec, job.id)
    return NamespacePlan(
        name=row.name,
        job=job.id,
        token=namespace_token(master_key, row.name, job.id),
        replicas=policy.replicas,
        memory_every=policy.memory_every,
        durable_every=policy.durable_every,
        keep_in_memory=policy.keep_in_memory,
        retention=policy.retention,
        mtbf_s=row.mtbf_s,
        pinned=marks.pinned,
        drain=marks.drain,
        dropped=marks.dropped,
    )


def _digest(said: object) -> bytes:
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_NUMBER_BYTES).digest()


def _holders_of_ended(session: Session, since: datetime, node_ids: Sequence[NodeId]) -> Sequence[NodeId]:
    """Which of these nodes hold shards of jobs that have ended since."""
    wanted = select(CheckpointCopy.node_id).join(CheckpointStep, CheckpointStep.id == CheckpointCopy.step_id)
    wanted = wanted.join(CheckpointNamespace, CheckpointNamespace.name == CheckpointStep.namespace)
    wanted = wanted.join(Job, Job.id == CheckpointNamespace.job_id)
    held = (CheckpointCopy.state == CopyState.SEALED, CheckpointCopy.node_id.in_(node_ids), Job.ended_at >= since - _FRESH)
    return session.scalars(wanted.where(*held).distinct()).all()
