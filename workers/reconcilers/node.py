"""Nodes: what is seen of them, and how a plan's conclusions are written down. What their providers are asked is in ``host``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.checkpoint import changes as checkpoints
from models.cluster import queries as clusters
from models.cluster.states import GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.condition.changes import settle_all_over
from models.health import changes as health_changes
from models.health import queries as health
from models.health.states import CheckKind
from models.ids import GroupId
from models.job import queries as jobs
from models.job.table import Job
from models.move import wake
from models.node import changes, wishes
from models.node import queries as nodes
from models.node.liveness import suspicious_silence
from models.node.states import NodeState
from models.node.table import Node
from models.notify import nudge
from models.pulse import listening_since
from models.session import keep
from workers.plans import brake, repair
from workers.plans import node as plans
from workers.plans.brake import Brake
from workers.plans.decision import Decision, soonest
from workers.plans.node import Patience
from workers.plans.repair_seen import Dress, HealthSeen, Policy, RestartProcess
from workers.reconcilers import node_health, vouching

_EMPTIED = (NodeState.DRAINING, NodeState.DETACHING)
_FORGETFUL = (NodeState.REBOOTING, NodeState.UPDATING, NodeState.ATTACHING, NodeState.RELEASING, NodeState.GONE)
"""The states in which what a node held in memory is gone, or about to be."""


@dataclass(frozen=True)
class Seen:
    """A node as its two plans see it: what becomes of it, and what follows from what is the matter with it."""

    node: plans.NodeSeen
    health: HealthSeen


@dataclass(frozen=True)
class NodeReconciler:
    patience: Patience = field(default_factory=Patience)
    policy: Policy = field(default_factory=Policy)

    TABLE: ClassVar[Any] = Node
    SPAN: ClassVar[timedelta] = timedelta(seconds=2)
    ACTS_OUTSIDE: ClassVar[bool] = False

    def observe(self, session: Session, row_id: str, now: datetime) -> Seen | None:
        node = session.get(Node, row_id)
        if node is None:
            return None
        cluster = session.get_one(Cluster, node.cluster_id)
        group = clusters.group(session, node.group_id)
        keep(session, [node, cluster, group])
        health_seen = node_health.observe(session, node, group, cluster, self.policy, now)
        return Seen(self._observe_node(session, node, group, is_recovered=health_seen.is_recovered, now=now), health_seen)

    def _observe_node(
        self, session: Session, node: Node, group: InstanceGroup, *, is_recovered: bool, now: datetime
    ) -> plans.NodeSeen:
        silent_since = node.stream_lost_at
        seen = plans.NodeSeen(
            state=NodeState(node.state),
            state_since=node.state_since,
            is_wanted=node.is_wanted,
            is_busy=node.state in _EMPTIED and bool(jobs.on_node(session, node.id)),
            last_seen=node.last_seen,
            heard_since=listening_since(session, now=now) if self._is_quiet(node, now) else None,
            stream_lost_at=node.stream_lost_at,
            lifecycle_done=node.lifecycle_done,
            lifecycle_failure=_lifecycle_failure(node),
            host_word=node.host_word,
            host_word_at=node.host_word_at,
            given_up=jobs.given_up_on(session, node.id, since=silent_since) if silent_since else 0,
            work_goes_on=vouching.goes_on(session, node, now) if node.state is NodeState.SUSPECT else None,
            is_recovered=is_recovered,
            restart=node.restart,
            restart_drain=None if node.restart_drain_s is None else timedelta(seconds=node.restart_drain_s),
            restart_is_forced=node.restart_is_forced,
            move_to=node.move_to,
            move_is_possible=node.move_to is None or _takes_nodes(session, node.move_to),
            patience=self._patience(session, node, now),
        )
        return replace(seen, brake=self._brake(session, seen, group, now))

    def _brake(self, session: Session, seen: plans.NodeSeen, group: InstanceGroup, now: datetime) -> Brake:
        """Only asked for when somebody would be given up on suspicion now: it counts the nodes of all groups."""
        would_be_lost = seen.state is NodeState.SUSPECT and plans.is_suspected_lost(seen, now)
        return node_health.brake_of(session, group, self.policy.limits, now) if would_be_lost else brake.OPEN

    def _patience(self, session: Session, node: Node, now: datetime) -> Patience:
        """With very many nodes each beats more slowly. They are only counted for one that would be suspected of silence otherwise."""
        if not self._is_quiet(node, now):
            return self.patience
        return replace(self.patience, beats=suspicious_silence(nodes.population(session)))

    def _is_quiet(self, node: Node, now: datetime) -> bool:
        return node.last_seen is not None and now - node.last_seen > self.patience.beats

    def plan(self, seen: Seen, now: datetime) -> Decision[Any]:
        """What its health asks for comes first, and what becomes of it follows from that."""
        health_says = repair.plan(seen.health, now)
        if any(not isinstance(action, Dress) for action in health_says.actions):
            return Decision(health_says.actions, timedelta(0))
        node_says = plans.plan(seen.node, now)
        return Decision((*health_says.actions, *node_says.actions), soonest(health_says.again_in, node_says.again_in))

    def act(self, seen: Seen, action: Any) -> Any:
        raise NotImplementedError

    def settle(self, session: Session, row_id: str, results: tuple[Any, ...], now: datetime) -> None:
        node = session.get_one(Node, row_id)
        if any(isinstance(action, RestartProcess) for action in results):
            _lock_jobs(session, node)
        for action in results:
            if not node_health.settle(session, node, action, now):
                _write(session, node, action, now)
        if node.state is NodeState.RELEASING:
            settle_all_over(session, node, why="Its host goes.", now=now)
        if any(not isinstance(action, Dress) for action in results):
            wake(session, node, now=now)
            _tell_jobs(session, node, now)


def _lock_jobs(session: Session, node: Node) -> None:
    """All at once and by their ids, before actions that lock some of them each: those come in the order of conditions."""
    for job_id in sorted({process.job_id for process in jobs.on_node(session, node.id)}):
        jobs.get(session, job_id, lock=True)


def _write(session: Session, node: Node, action: plans.Action, now: datetime) -> None:
    match action:
        case plans.Move(new=new, why=why):
            has_started = node.state is NodeState.CHECKING and new is NodeState.READY
            changes.settle_node(session, node, new, why=why, now=now)
            if has_started:
                _examine(session, node, now)
        case plans.Lose(why=why, is_certain=is_certain):
            changes.settle_lost(session, node, witnesses=why, is_certain=is_certain, now=now)
        case plans.Fail(why=why):
            changes.settle_failed(session, node, why=why, now=now)
        case plans.StartAnew(why=why):
            wishes.settle_restart(session, node, why=why, now=now)
        case plans.DropRestart(why=why):
            wishes.settle_restart_dropped(session, node, why=why, now=now)
        case plans.HandOver(group=group, why=why):
            _hand_over(session, node, clusters.group(session, group), why, now)
        case plans.WithdrawMove(why=why):
            wishes.settle_move_withdrawn(session, node, why=why, now=now)
        case _:
            message = f"nobody writes {action!r}"
            raise NotImplementedError(message)


def _examine(session: Session, node: Node, now: datetime) -> None:
    """A node that serves for the first time is examined before it takes work, if its group is to be; one that was unfit has started anew."""
    if node.held_for == health_changes.UNFIT:
        changes.settle_held(session, node, None, now=now)
    group = clusters.group(session, node.group_id)
    kinds = [CheckKind(kind) for kind in group.spec.get("OnStartDeepHealthChecks", ())]
    if kinds and health.runs_jobs(group) and not health.was_examined(session, node.id):
        health_changes.settle_started(session, node, kinds, now=now)


def _tell_jobs(session: Session, node: Node, now: datetime) -> None:
    """Jobs on a node that goes must look; jobs that wait for nodes may look, and do so by themselves if this is lost.

    Whoever looks finds no more what the node held in memory.
    """
    if node.state in _FORGETFUL:
        checkpoints.settle_lost_copies(session, node.id, now=now)
    if node.state in (*_EMPTIED, NodeState.RELEASING):
        wake_jobs_on(session, node, now)
    if node.state is NodeState.READY:
        for job in jobs.of_cluster(session, node.cluster_id, live_only=True):
            nudge(session, Job.KIND, job.id)


def wake_jobs_on(session: Session, node: Node, now: datetime) -> None:
    """Job rows come after a node's in the order of locks, and are locked in the order of their ids."""
    for job_id in sorted({process.job_id for process in jobs.on_node(session, node.id)}):
        wake(session, jobs.get(session, job_id, lock=True), now=now)


def _lifecycle_failure(node: Node) -> str | None:
    return node.message if node.facts.get("lifecycle_exit_code", 0) != 0 else None


def _takes_nodes(session: Session, group_id: GroupId) -> bool:
    return clusters.group(session, group_id).state not in (GroupState.DELETING, GroupState.GONE, GroupState.FAILED)


def _hand_over(session: Session, node: Node, group: InstanceGroup, why: str, now: datetime) -> None:
    wishes.settle_moved(session, node, group, image=group.image_wanted, why=why, now=now)
    nudge(session, Cluster.KIND, group.cluster_id)
