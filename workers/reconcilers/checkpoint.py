"""Saved steps: what the object store keeps of them. The store is called in no transaction; every decision is in ``workers.plans.checkpoint``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.checkpoint import changes, queries
from models.checkpoint.policy import policy_of
from models.checkpoint.states import ExportState, StepState
from models.checkpoint.table import CheckpointStep
from models.fault.queries import is_store_out
from models.ids import checkpoint_id
from models.job.table import Job
from models.notify import nudge
from workers.objects import Objects, StoreAway
from workers.plans import checkpoint as plans
from workers.plans.decision import Decision
from workers.plans.durable_retention import DurableStep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """A step as its plan sees it, and as the store is asked for it."""

    plan: plans.StepSeen
    namespace: str
    world_size: int | None
    save: str


@dataclass(frozen=True)
class Removed:
    """Nothing of the step is left in the store."""

    save: str


@dataclass(frozen=True)
class Away:
    """The store did not answer; the step is looked at again."""


Outcome = Removed | Away | plans.Retire | plans.Nudge


@dataclass(frozen=True)
class CheckpointReconciler:
    objects: Objects

    TABLE: ClassVar[Any] = CheckpointStep
    SPAN: ClassVar[timedelta] = timedelta(seconds=8)
    ACTS_OUTSIDE: ClassVar[bool] = True

    def observe(self, session: Session, row_id: str, _now: datetime) -> Seen | None:
        row = session.get(CheckpointStep, row_id)
        namespace = queries.namespace(session, row.namespace) if row is not None else None
        if row is None or namespace is None:
            return None
        job = session.get_one(Job, namespace.job_id)
        exports = queries.exports(session, row.namespace, live_only=True)
        asked = {export.step for export in exports}
        durable = queries.steps(session, row.namespace, in_state=(StepState.KEPT,), durable_only=True)
        seen = plans.StepSeen(
            step=row.step,
            state=row.state,
            durable=tuple(_durable(one, is_held=one.is_pinned or one.step in asked) for one in durable),
            retention=policy_of(job.spec, job.id).retention,
            is_in_memory=bool(queries.holders(session, [row.id])),
            is_read=any(export.state is ExportState.RUNNING and export.step == row.step for export in exports),
            is_store_out=is_store_out(session),
        )
        return Seen(seen, row.namespace, row.world_size, row.save)

    def plan(self, seen: Seen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen.plan, now)

    def act(self, seen: Seen, action: plans.Action) -> Outcome:
        if isinstance(action, plans.Retire | plans.Nudge):
            return action
        try:
            self.objects.remove(seen.namespace, seen.plan.step, seen.world_size)
        except StoreAway as error:
            log.warning("step %s of %s stays in the object store for now: %s", seen.plan.step, seen.namespace, error)
            return Away()
        log.info("step %s of %s is gone from the object store: %s", seen.plan.step, seen.namespace, action.why)
        return Removed(seen.save)

    def settle(self, session: Session, row_id: str, results: tuple[Outcome, ...], now: datetime) -> None:
        row = session.get_one(CheckpointStep, row_id, populate_existing=True)
        for outcome in results:
            match outcome:
                case plans.Retire(why=why):
                    changes.settle_dropping(session, row, why=why, now=now)
                case plans.Nudge(steps=steps):
                    for step in steps:
                        nudge(session, CheckpointStep.KIND, checkpoint_id(row.namespace, step))
                case Removed(save=save):
                    _settle_removed(session, row, save, now)
                case Away():
                    pass


def _settle_removed(session: Session, row: CheckpointStep, save: str, now: datetime) -> None:
    """A step that was saved anew while the old one was removed has a life of its own: what is durable of it will be told."""
    if row.save != save:
        return
    if row.state is StepState.DROPPING:
        changes.settle_dropped(session, row, now=now)
    else:
        changes.settle_not_durable(session, row)


def _durable(row: CheckpointStep, *, is_held: bool) -> DurableStep:
    return DurableStep(row.step, row.durable_bytes or 0, row.durable_at or row.created_at, is_held=is_held)
