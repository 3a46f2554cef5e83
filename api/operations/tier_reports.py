"""What nodes report of checkpoints, as the domain takes it: Unix seconds become times, and none of them lies in the future."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from everstep.tiers import CopiesReport, DurableReport, SavedReport, TierReport
from models.checkpoint import reports
from models.job import queries as jobs
from models.node.table import Node


def hold(session: Session, node: Node, told: Sequence[object], now: datetime) -> None:
    """Locks what a batch of reports will change of checkpoints, in one order. One that cannot be applied is named when its turn comes, not here."""
    wanted = [
        _held(report, now) if isinstance(report, CopiesReport) else _committed(report, now)
        for report in told
        if isinstance(report, CopiesReport | DurableReport)
    ]
    if wanted:
        reports.report_steps(session, node.cluster_id, wanted, now=now)


def _copies(session: Session, node: Node, report: CopiesReport, now: datetime) -> None:
    reports.report_copies(session, node, _held(report, now), now=now)


def _durable(session: Session, node: Node, report: DurableReport, now: datetime) -> None:
    reports.report_durable(session, node.cluster_id, _committed(report, now), now=now)


def _held(report: CopiesReport, now: datetime) -> reports.Held:
    at = _time(report.at, now)
    return reports.Held(
        namespace=report.namespace,
        step=report.step,
        save=report.save,
        world_size=report.world_size,
        copies=[reports.Copy(copy.index, copy.status, copy.nbytes, copy.digest) for copy in report.copies],
        written_at=_time(report.written_at, at),
        at=at,
    )


def _committed(report: DurableReport, now: datetime) -> reports.Durable:
    return reports.Durable(
        namespace=report.namespace,
        step=report.step,
        save=report.save,
        world_size=report.world_size,
        nbytes=report.nbytes,
        is_withdrawn=report.is_withdrawn,
        at=_time(report.at, now),
    )


def _tier(session: Session, node: Node, report: TierReport, now: datetime) -> None:
    told = reports.Tier(
        plan=report.plan,
        allocated_bytes=report.allocated_bytes,
        used_bytes=report.used_bytes,
        backlog_bytes=report.backlog_bytes,
        waiting_since=None if report.waiting_since is None else _time(report.waiting_since, now),
        outage=report.outage,
        refusals=report.refusals,
        note=report.note,
        at=_time(report.at, now),
    )
    reports.report_tier(session, node, told, now=now)


def _saved(session: Session, _: Node, report: SavedReport, now: datetime) -> None:
    told = reports.Saved(
        step=report.step,
        stall_s=report.stall_s,
        seconds=report.seconds,
        nbytes=report.nbytes,
        memory_every=report.memory_every,
        durable_every=report.durable_every,
        why=report.why,
    )
    reports.report_saved(session, jobs.get(session, report.job, lock=True), told, now=now)


def _time(seconds: float, latest: datetime) -> datetime:
    """0: it was not told, and is ``latest``. A node whose clock runs ahead does not outdo what comes after, whoever tells it."""
    return min(datetime.fromtimestamp(seconds, UTC), latest) if seconds else latest


TELL: Mapping[type, Callable[[Session, Node, Any, datetime], None]] = {
    CopiesReport: _copies,
    DurableReport: _durable,
    TierReport: _tier,
    SavedReport: _saved,
}
