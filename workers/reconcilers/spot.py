"""Notices: what is seen of them and their nodes, and how a plan's conclusions are written down. A notice is locked before its node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.job.states import ALIVE, ProcessState
from models.job.table import JobProcess
from models.node import queries as nodes
from models.node.states import NodeState
from models.node.table import Node
from models.spot import changes, queries
from models.spot.table import Notice
from workers.plans import spot as plans
from workers.plans.decision import Decision

_GOING = (NodeState.RELEASING, NodeState.GONE)


class SpotReconciler:
    TABLE: ClassVar[Any] = Notice
    SPAN: ClassVar[timedelta] = timedelta(seconds=2)
    ACTS_OUTSIDE: ClassVar[bool] = False

    def observe(self, session: Session, row_id: str, _now: datetime) -> plans.NoticeSeen | None:
        notice = session.get(Notice, row_id)
        if notice is None:
            return None
        node = nodes.get(session, notice.node_id, lock=True)
        processes = queries.on_nodes(session, [node.id])
        policy = queries.policy_of(queries.policies(session, notice.cluster_id), node.group_name)
        return plans.NoticeSeen(
            state=notice.state,
            kind=notice.kind,
            deadline=node.leave_by if node.leave_why == notice.why else notice.deadline,
            is_told=queries.is_told(node, notice),
            node_state=NodeState(node.state),
            is_wanted=node.is_wanted,
            is_busy=any(process.state in ALIVE for process in processes),
            emptied_at=max([notice.announced_at, *(process.state_since for process in _ended(processes))]),
            was_lost=node.lost_because is not None,
            was_struck=_was_struck(node, processes),
            leaves_on_rebalance=policy is not None and policy.leave_on_rebalance,
            is_left=node.leave_why is not None,
        )

    def plan(self, seen: plans.NoticeSeen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen, now)

    def act(self, seen: plans.NoticeSeen, action: plans.Action) -> Any:
        raise NotImplementedError

    def settle(self, session: Session, row_id: str, results: tuple[plans.Action, ...], now: datetime) -> None:
        notice = session.get_one(Notice, row_id)
        node = session.get_one(Node, notice.node_id)
        for action in results:
            match action:
                case plans.Evacuate(why=why):
                    changes.settle_evacuating(session, notice, node, why=why, now=now)
                case plans.TellAgain():
                    changes.settle_left_for(session, notice, node, now=now)
                case plans.Release(new=new, why=why):
                    changes.settle_taken(session, node, why=why, now=now)
                    changes.settle_notice(session, notice, new, why=why, now=now)
                case plans.Conclude(new=new, why=why):
                    changes.settle_notice(session, notice, new, why=why, now=now)


def _ended(processes: Sequence[JobProcess]) -> list[JobProcess]:
    return [process for process in processes if process.state not in ALIVE]


def _was_struck(node: Node, processes: Sequence[JobProcess]) -> bool:
    """Whether processes were there when the node began to go: they are still taken for alive, or were given up since."""
    if node.state not in _GOING:
        return False
    return any(
        process.state in ALIVE or (process.state is ProcessState.LOST and process.state_since >= node.state_since)
        for process in processes
    )
