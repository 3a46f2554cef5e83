"""Holds of repairs: how much trouble their groups still have, and who is told. Every decision is in ``workers.plans.brake``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.cluster import queries as clusters
from models.cluster.states import GroupState
from models.condition import changes, queries
from models.condition.table import RepairHold
from models.node.table import Node
from models.notify import nudge
from workers.plans import brake as plans
from workers.plans.brake import Limits
from workers.plans.decision import Decision
from workers.reconcilers.node_health import trouble_seen


@dataclass(frozen=True)
class HoldReconciler:
    limits: Limits = field(default_factory=Limits)

    TABLE: ClassVar[Any] = RepairHold
    SPAN: ClassVar[timedelta] = timedelta(seconds=2)
    ACTS_OUTSIDE: ClassVar[bool] = False

    def observe(self, session: Session, row_id: str, now: datetime) -> plans.HoldSeen | None:
        hold = session.get(RepairHold, row_id)
        if hold is None:
            return None
        group = clusters.group(session, hold.group_id)
        return plans.HoldSeen(
            trouble=trouble_seen(session, group, hold, self.limits, now),
            told_at=hold.told_at,
            limits=self.limits,
            is_over=hold.ended_at is not None,
            group_is_going=group.state in (GroupState.DELETING, GroupState.GONE),
        )

    def plan(self, seen: plans.HoldSeen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen, now)

    def act(self, seen: plans.HoldSeen, action: plans.Action) -> Any:
        raise NotImplementedError

    def settle(self, session: Session, row_id: str, results: tuple[plans.Action, ...], now: datetime) -> None:
        """Nodes are nudged, not woken: their rows come before everything else, and are not to be waited for here."""
        hold = session.get_one(RepairHold, row_id)
        group = clusters.group(session, hold.group_id)
        for action in results:
            match action:
                case plans.End(why=why):
                    changes.settle_hold_over(session, hold, group.name, why=why, now=now)
                case plans.Remind(why=why):
                    changes.settle_hold_lasts(session, hold, group.name, why=why, now=now)
                case plans.LetGo():
                    for node_id in queries.held_back(session, hold.group_id):
                        nudge(session, Node.KIND, node_id)
