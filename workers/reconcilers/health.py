"""Deep health checks: what is seen of them, and how a plan's actions are written down. Every decision is in ``workers.plans.health``."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from everstep.examination import Check, Floor, Peer, Team
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.health import changes, queries
from models.health.states import CheckKind, CheckState
from models.health.table import HealthCheck, NodeCheck
from models.job import queries as jobs
from models.node import queries as nodes
from models.node.states import NodeState
from models.node.table import Node
from models.node.wishes import check_replaceable, request_replacement
from workers.plans import health as plans
from workers.plans.decision import Decision
from workers.plans.floors import learned

_MEETING = 20_000
_MEETINGS = 10_000
"""Nodes that train together meet at a port of the first one, below those that outgoing connections get."""


class HealthReconciler:
    TABLE: ClassVar[Any] = HealthCheck
    SPAN: ClassVar[timedelta] = timedelta(seconds=5)
    ACTS_OUTSIDE: ClassVar[bool] = False

    def observe(self, session: Session, row_id: str, _now: datetime) -> plans.CheckSeen | None:
        check = session.get(HealthCheck, row_id)
        if check is None or check.ended_at is not None:
            return None
        cluster = session.get_one(Cluster, check.cluster_id)
        present = {node.id: node for node in nodes.of_cluster(session, cluster.id)}
        busy = jobs.busy_nodes(session, cluster.id)
        peers: dict[str, list[tuple[str, int]]] = {}
        for node in present.values():
            port = node.facts.get("health_port")
            if node.state is NodeState.READY and node.address and port:
                peers.setdefault(node.group_name, []).append((node.address, port))
        return plans.CheckSeen(
            nodes=tuple(
                _seen(row, present.get(row.node_id) or nodes.get(session, row.node_id), is_busy=row.node_id in busy)
                for row in queries.of_check(session, check.id)
            ),
            peers={group: tuple(sorted(found)) for group, found in peers.items()},
            replaces=cluster.settings.get("NodeRecovery") != "None",
            cluster_is_going=cluster.state in (ClusterState.DELETING, ClusterState.DELETED),
        )

    def plan(self, seen: plans.CheckSeen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen, now)

    def act(self, seen: plans.CheckSeen, action: plans.Action) -> Any:
        raise NotImplementedError

    def settle(self, session: Session, row_id: str, results: tuple[plans.Action, ...], now: datetime) -> None:
        """Locks nodes by id, then their examinations."""
        rows = {row.id: row for row in queries.of_check(session, row_id)}
        for action in sorted(results, key=lambda action: _node_of(rows, action)):
            if isinstance(action, plans.Close):
                changes.settle_ended(session, session.get_one(HealthCheck, row_id), why=action.why, now=now)
                continue
            node = nodes.get(session, rows[action.check].node_id, lock=True)
            row = queries.get(session, action.check)
            if row is not None:
                _write(session, rows, row, node, action, now)


def _write(session: Session, rows: dict[Any, NodeCheck], row: NodeCheck, node: Node, action: plans.Action, now: datetime) -> None:
    match action:
        case plans.Ask() if row.state is CheckState.WAITING:
            changes.settle_asked(session, row, node, _order(session, rows, row, action).to_wire(), now=now)
        case plans.Skip(why=why) if row.state in (CheckState.WAITING, CheckState.ASKED):
            changes.settle_skipped(session, row, node, why=why, now=now)
        case plans.GiveUp(why=why) if row.state is CheckState.ASKED:
            changes.settle_silent(session, row, node, why=why, now=now)
        case plans.GiveBack():
            changes.settle_through(session, node, is_unfit=False, now=now)
        case plans.Keep():
            changes.settle_through(session, node, is_unfit=True, now=now)
        case plans.Replace(why=why):
            _replace(session, node, why, now)
        case _:
            pass


def _replace(session: Session, node: Node, why: str, now: datetime) -> None:
    """A node that cannot be replaced now, because it is on its way elsewhere, takes no new work instead."""
    is_going = not node.is_wanted or node.move_to is not None
    changes.settle_through(session, node, is_unfit=True, now=now)
    if not is_going:
        check_replaceable(node)
        request_replacement(session, node, why=why, now=now)


def _order(session: Session, rows: dict[Any, NodeCheck], row: NodeCheck, action: plans.Ask) -> Check:
    """What the agent is told. The first of those that train together, by their checks' numbers, is where they meet."""
    team = None
    if action.team:
        members = sorted((rows[check] for check in action.team), key=lambda member: member.sequence)
        first = nodes.get(session, members[0].node_id)
        rank = next(rank for rank, member in enumerate(members) if member.id == row.id)
        team = Team(rank, len(members), str(first.address), _MEETING + members[0].sequence % _MEETINGS)
    peers = tuple(Peer(address, port) for address, port in action.peers)
    return Check(row.id, tuple(row.kinds), peers, team, _floor(session, row) if peers else None)


def _floor(session: Session, row: NodeCheck) -> Floor | None:
    found = queries.measured(session, nodes.get(session, row.node_id))
    usual = learned(found.get("all_reduce_mib_per_s", ()), found.get("all_reduce_ms", ()))
    return None if usual is None else Floor(usual.mib_per_s, usual.ms)


def _node_of(rows: dict[Any, NodeCheck], action: plans.Action) -> str:
    """The order in which rows are locked; closing comes last."""
    return "~" if isinstance(action, plans.Close) else rows[action.check].node_id


def _seen(row: NodeCheck, node: Node, *, is_busy: bool) -> plans.NodeSeen:
    return plans.NodeSeen(
        check=row.id,
        group=node.group_name,
        state=CheckState(row.state),
        state_since=row.state_since,
        created_at=row.created_at,
        kinds=frozenset(CheckKind(kind) for kind in row.kinds),
        address=str(node.address),
        port=node.facts.get("health_port"),
        serves=node.state is NodeState.READY
        and node.stream_lost_at is None
        and node.held_for in (None, changes.EXAMINED, changes.UNFIT),
        is_busy=is_busy,
        is_gone=not node.is_wanted or node.state in (NodeState.RELEASING, NodeState.GONE),
        is_held=node.held_for == changes.EXAMINED,
        why=row.why,
    )
