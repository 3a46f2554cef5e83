"""Jobs: what is seen of them, and how a plan's actions are written down. Every decision is in ``workers.plans.job``.

What the nodes are told is derived from the rows after every step, so an assignment always says what the rows say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.checkpoint import queries as checkpoints
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.directive import queries as directives
from models.directive.changes import settle_withdrawn
from models.directive.states import DirectiveState
from models.ids import NodeId, checkpoint_id
from models.job import changes
from models.job import queries as jobs
from models.job.plain import grace_of, is_plain
from models.job.states import ALIVE, ENDED, JobState, ProcessState
from models.job.stragglers import are_replaced
from models.job.table import Generation, Job, JobProcess
from models.move import wake
from models.node import queries as nodes
from models.node.changes import settle_standby
from models.node.states import RESTARTING, NodeState
from models.node.table import Node
from models.notify import nudge
from models.session import keep
from models.spot.queries import standing_in
from workers.plans import job as plans
from workers.plans import job_seen as seen_as
from workers.plans.decision import Decision
from workers.plans.job_seen import Patience
from workers.plans.stragglers import CAUSE
from workers.reconcilers.assignments import tell
from workers.reconcilers.job_size import Claim, elasticity, is_free_asked, is_of_use, kept_for_others, spares_of_pools

_GENERATIONS = 12
"""How many of the newest generations a plan looks at."""
_WAITING = (JobState.QUEUED, JobState.FORMING, JobState.RECOVERING)
_AWAY = frozenset({*ENDED, JobState.QUEUED})
"""Nothing of such a job runs anywhere."""
_GOING = (NodeState.DRAINING, NodeState.DETACHING, *RESTARTING, NodeState.RELEASING, NodeState.GONE)


@dataclass(frozen=True)
class JobReconciler:
    patience: Patience = field(default_factory=Patience)

    TABLE: ClassVar[Any] = Job
    SPAN: ClassVar[timedelta] = timedelta(seconds=2)
    ACTS_OUTSIDE: ClassVar[bool] = False

    def observe(self, session: Session, row_id: str, now: datetime) -> seen_as.JobSeen | None:
        job = session.get(Job, row_id)
        if job is None:
            return None
        if job.state not in ENDED:
            _place_one_at_a_time(session, job)
        return self._seen(session, job, now)

    def plan(self, seen: seen_as.JobSeen, now: datetime) -> Decision[seen_as.Action]:
        return plans.plan(seen, now)

    def act(self, seen: seen_as.JobSeen, action: seen_as.Action) -> Any:
        raise NotImplementedError

    def settle(self, session: Session, row_id: str, results: tuple[seen_as.Action, ...], now: datetime) -> None:
        job = session.get_one(Job, row_id)
        was = job.state
        for action in results:
            _write(session, job, action, now)
        tell(session, job, now=now)
        if job.state in ENDED and was not in ENDED:
            wake(session, job, now=now)  # its processes are still to leave
        if job.state in ENDED:
            _nudge_waiting(session, job)
        if (job.state in _AWAY) is not (was in _AWAY):
            settle_standby(session, job.cluster_id)

    def _seen(self, session: Session, job: Job, now: datetime) -> seen_as.JobSeen:
        cluster = session.get_one(Cluster, job.cluster_id)
        generations = jobs.generations(session, job.id)
        processes = jobs.processes(session, job.id)
        present = nodes.of_cluster(session, job.cluster_id)
        keep(session, [job, cluster, *generations, *processes, *present])
        others = [other for other in jobs.of_cluster(session, job.cluster_id, live_only=True) if other.id != job.id]
        nodes_seen = _nodes_seen(session, job, present, processes, others, now=now)
        has_namespace, found = _checkpoint(session, job, processes, nodes_seen)
        return seen_as.JobSeen(
            state=JobState(job.state),
            replicas=job.replicas,
            is_plain=is_plain(job.spec),
            processes_per_node=job.processes_per_node,
            spares=job.spares,
            max_restarts=job.max_restarts,
            restarts=job.restarts,
            is_stopping=job.stop_requested,
            cluster_is_going=cluster.state in (ClusterState.DELETING, ClusterState.DELETED),
            halted_at=job.halted_at,
            grace=grace_of(job.spec, job.state),
            groups=_groups(session, job),
            processes=tuple(_process_seen(process) for process in processes),
            nodes=nodes_seen,
            generations=tuple(_generation_seen(generation) for generation in generations[-_GENERATIONS:]),
            told=tuple(_told(directive) for directive in directives.of_job(session, job.id)),
            has_ever_formed=any(generation.formed_at is not None for generation in generations),
            step=job.step,
            has_namespace=has_namespace,
            checkpoint=found,
            why=job.why,
            elastic=elasticity(job, generations),
            awaits=job.awaits,
            awaits_since=job.awaits_since,
            is_queue_behind=_is_waited_for(session, processes, others, nodes_seen),
            replaces_stragglers=are_replaced(job.spec),
            straggler_replaced_at=max((one.decided_at for one in generations if one.cause.startswith(CAUSE)), default=None),
            patience=self.patience,
        )


def _is_waited_for(
    session: Session, processes: Sequence[JobProcess], others: Sequence[Job], present: Mapping[NodeId, seen_as.NodeSeen]
) -> bool:
    """Whether another job waits in the queue for just the nodes that this one holds."""
    own = frozenset(process.node_id for process in processes if process.state in ALIVE)
    queued = [other for other in others if other.state is JobState.QUEUED and not other.stop_requested]
    return any(is_of_use(Claim(other, _groups(session, other)), present, own) for other in queued)


def _groups(session: Session, job: Job) -> frozenset[str]:
    """The groups that the job may use, those that stand in for one of them now included; none named: all."""
    named = frozenset(job.spec.get("instance_groups") or ())
    return named | standing_in(session, job.cluster_id, named)


def _place_one_at_a_time(session: Session, job: Job) -> None:
    """Two jobs of one cluster that look for nodes at the same moment would both find the same free ones.

    Taken after the job's row, and whoever holds it waits for no other job's row, so it cannot be part of a deadlock.
    """
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"place:{job.cluster_id}", 0))))


def _write(session: Session, job: Job, action: seen_as.Action, now: datetime) -> None:
    match action:
        case seen_as.Start(places=places):
            changes.settle_processes(session, job, places, now=now)
        case seen_as.GiveUp(process=process, why=why, is_planned=is_planned):
            row = session.get_one(JobProcess, process)
            changes.settle_given_up(session, job, row, why=why, is_planned=is_planned, now=now)
            nudge(session, Node.KIND, row.node_id)
        case seen_as.Publish(members=members, why=why, evidence_at=evidence_at):
            rows = [session.get_one(JobProcess, process) for process in members]
            changes.settle_generation(session, job, rows, cause=why, evidence_at=evidence_at, now=now)
            changes.settle_size(job, len(rows) // job.processes_per_node)
            changes.settle_why(job, why)
        case seen_as.Move(new=new, why=why):
            changes.settle_job(session, job, new, why=why, now=now)
        case seen_as.CountRestarts(restarts=restarts):
            changes.settle_restarts(job, restarts)
        case seen_as.Halt():
            changes.settle_halt(session, job, now=now)
        case seen_as.Withdraw(node=node):
            settle_withdrawn(session, node, job.id, DirectiveState.DONE, now=now)
        case seen_as.Say(why=why):
            changes.settle_why(job, why)
        case _:
            _write_size(session, job, action, now)


def _write_size(session: Session, job: Job, action: seen_as.Action, now: datetime) -> None:
    match action:
        case seen_as.Resize(replicas=replicas):
            changes.settle_size(job, replicas)
        case seen_as.Await(nodes=count):
            changes.settle_awaits(job, count, now=now)
        case seen_as.Form(number=number):
            changes.settle_formed(session, job, number, now=now)


def _nudge_waiting(session: Session, job: Job) -> None:
    """Nodes may have become free. A nudge, not a wake: two jobs that lock each other's rows would deadlock; they look by themselves too."""
    for other in jobs.of_cluster(session, job.cluster_id, live_only=True):
        if other.id != job.id and other.state in _WAITING:
            nudge(session, Job.KIND, other.id)


def _nodes_seen(
    session: Session, job: Job, present: Sequence[Node], processes: Sequence[JobProcess], others: Sequence[Job], *, now: datetime
) -> Mapping[NodeId, seen_as.NodeSeen]:
    """Since when each has been free is told to those that may grow only: nobody else asks."""
    free_since = is_free_asked(job)
    held = {node: holder for node, holder in jobs.busy_nodes(session, job.cluster_id).items() if holder != job.id}
    ends = jobs.last_ends(session, [node.id for node in present]) if free_since else {}
    found = {
        node.id: seen_as.NodeSeen(
            id=node.id,
            group=node.group_name,
            age=age,
            serves=node.state is NodeState.READY and node.is_wanted,
            is_going=node.state in _GOING,
            is_held=node.id in held or not node.takes_work,
            stream_lost_at=node.stream_lost_at,
            went_at=node.state_since,
            leave_by=node.leave_by,
            leave_why=node.leave_why,
            free_since=max(node.state_since, ends.get(node.id, node.state_since)) if free_since else None,
        )
        for age, node in enumerate(present)
    }
    claims = [Claim(other, _groups(session, other)) for other in others if other.awaits]
    lately = now - Patience().repair
    own = frozenset(one.node_id for one in processes if one.state in ALIVE or (one.rank is not None and one.state_since > lately))
    kept = kept_for_others(job, claims, found, own, now)
    pools = {group.name: group.spare_nodes for group in clusters.groups(session, job.cluster_id) if group.spare_nodes}
    spare = spares_of_pools(pools, found, frozenset(one.node_id for one in processes if one.state in ALIVE))
    return {id_: replace(node, is_held=node.is_held or id_ in kept, is_spare=id_ in spare) for id_, node in found.items()}


def _checkpoint(
    session: Session, job: Job, processes: Sequence[JobProcess], present: Mapping[NodeId, seen_as.NodeSeen]
) -> tuple[bool, seen_as.CheckpointSeen | None]:
    """Whether the job has a namespace, and the newest complete step in it. Nobody is asked while a process that can be heard holds the state.

    Memory on nodes that go, or are not heard, does not count: it may be gone with them. Nor does that on nodes which are to be left, as long as
    somebody there still holds the state. A job that waits for lost nodes is told too: it may have to start again.
    """
    heard = {node.id for node in present.values() if not node.is_going and node.stream_lost_at is None}
    stay = {node for node in heard if not present[node].must_be_left}
    holding = {one.node_id for one in processes if one.state in ALIVE and one.reformed and one.node_id in heard}
    if not job.generation or (holding & stay and not job.awaits):
        return False, None
    heard = stay if holding else heard
    namespace = checkpoints.of_job(session, job.id)
    if namespace is None:
        return False, None
    newest = checkpoints.newest(session, namespace.name, on=heard)
    if newest.step is None:
        return True, None
    is_in_memory = newest.in_memory == newest.step
    holders = checkpoints.holders(session, [checkpoint_id(namespace.name, newest.step)]) if is_in_memory else []
    durable_at = newest.durable_at if newest.durable == newest.step else None
    return True, seen_as.CheckpointSeen(newest.step, nodes=len(heard & set(holders)), durable_at=durable_at)


def _process_seen(process: JobProcess) -> seen_as.ProcessSeen:
    return seen_as.ProcessSeen(
        id=process.id,
        node=process.node_id,
        local_rank=process.local_rank,
        state=ProcessState(process.state),
        state_since=process.state_since,
        reformed=process.reformed,
        broken=process.broken,
        broken_at=process.broken_at,
        failure=process.failure,
        last_words=process.tail if process.exit_code not in (None, 0) else None,
        device_fault=process.device_fault,
        hang=_hang_seen(process),
        lag=_lag_seen(process),
        raised=_raised_seen(process),
        has_started=process.pid is not None,
        exit_code=process.exit_code,
        signal=process.signal,
    )


def _generation_seen(generation: Generation) -> seen_as.GenerationSeen:
    return seen_as.GenerationSeen(
        number=generation.number,
        members=tuple(generation.members),
        decided_at=generation.decided_at,
        is_formed=generation.formed_at is not None,
        step=generation.step,
        cause=generation.cause,
        reached=generation.reached,
        has_buddies=any(told.get("worst_loss") for told in generation.reports.values()),
    )


def _raised_seen(process: JobProcess) -> seen_as.RaisedSeen | None:
    told = process.raised
    if told is None:
        return None
    at = tuple(datetime.fromisoformat(one) for one in told["at"])
    return seen_as.RaisedSeen(tuple(told["generations"]), at, told["words"])


def _hang_seen(process: JobProcess) -> seen_as.HangSeen | None:
    told = process.hang
    if told is None:
        return None
    at, since = (datetime.fromisoformat(told[name]) for name in ("at", "since"))
    return seen_as.HangSeen(
        told["generation"], told["step"], told["how"], told["seconds"], told["limit_s"], told["stack"], at, since
    )


def _lag_seen(process: JobProcess) -> seen_as.LagSeen | None:
    told = process.lag
    if told is None or told["has_caught_up"] or told["rank"] is None:
        return None
    return seen_as.LagSeen(told["generation"], told["rank"], told["own_s"], told["others_s"])


def _told(directive: Any) -> seen_as.Told:
    return seen_as.Told(directive.node_id, directive.state is DirectiveState.DELIVERED, directive.delivered_at)
