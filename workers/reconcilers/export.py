"""Exports of checkpoints: a program writes them, and is looked at until it has ended. Every decision is in ``workers.plans.export``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.checkpoint import changes, queries
from models.checkpoint.states import ExportState, StepState
from models.checkpoint.table import CheckpointExport
from models.fault.queries import is_store_out
from workers.exports import Broken, ExportOrder, Exports, Running, Vanished, Written
from workers.objects import checkpoints_url, exports_url
from workers.plans import export as plans
from workers.plans.decision import Decision


@dataclass(frozen=True)
class Seen:
    """An export as its plan sees it, and as its program is told of it."""

    plan: plans.ExportSeen
    order: ExportOrder


Outcome = Running | Written | Broken | plans.Fail


@dataclass(frozen=True)
class ExportReconciler:
    exports: Exports
    object_store_url: str

    TABLE: ClassVar[Any] = CheckpointExport
    SPAN: ClassVar[timedelta] = timedelta(seconds=8)
    ACTS_OUTSIDE: ClassVar[bool] = True

    def observe(self, session: Session, row_id: str, _now: datetime) -> Seen | None:
        row = session.get(CheckpointExport, row_id)
        if row is None:
            return None
        step = queries.find(session, row.namespace, row.step)
        seen = plans.ExportSeen(
            state=row.state,
            asked_at=row.created_at,
            is_kept=step is not None and step.state is StepState.KEPT,
            is_durable=step is not None and step.durable_at is not None,
            is_store_out=is_store_out(session),
        )
        target = row.target or exports_url(self.object_store_url, row.job_id, row.step, row.format)
        source = checkpoints_url(self.object_store_url)
        return Seen(seen, ExportOrder(row.id, source, row.namespace, row.step, row.format, target))

    def plan(self, seen: Seen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen.plan, now)

    def act(self, seen: Seen, action: plans.Action) -> Outcome:
        match action:
            case plans.Fail():
                return action
            case plans.Begin():
                return self._begin(seen.order)
            case plans.Look():
                found = self.exports.look(seen.order.id)
        if not isinstance(found, Vanished):
            return found
        if found.tries >= plans.TRIES:
            return Broken(f"its program was begun {found.tries} times and vanished each time, without a word")
        return self._begin(seen.order)

    def settle(self, session: Session, row_id: str, results: tuple[Outcome, ...], now: datetime) -> None:
        row = queries.export(session, row_id, lock=True)
        for outcome in results:
            match outcome:
                case Running() if row.state is ExportState.WANTED:
                    changes.settle_export(session, row, ExportState.RUNNING, why=None, now=now)
                case Running():
                    pass
                case Written():
                    changes.settle_export(session, row, ExportState.DONE, why=None, url=self._url(row), now=now)
                case Broken(why=why) | plans.Fail(why=why):
                    changes.settle_export(session, row, ExportState.FAILED, why=why, now=now)

    def _begin(self, order: ExportOrder) -> Outcome:
        try:
            self.exports.begin(order)
        except OSError as error:
            return Broken(f"its program cannot be started: {error}")
        return Running()

    def _url(self, row: CheckpointExport) -> str:
        return row.target or exports_url(self.object_store_url, row.job_id, row.step, row.format)
