"""The tasks. A task takes a key, never a payload: what is to be done is in the rows."""

from __future__ import annotations

import logging

from celery import Celery

from models import replay
from models.fault.changes import settle_outages
from models.pulse import report_pulse
from models.session import unit_of_work
from workers import orphans, patches, prices, tending
from workers import sweep as sweeping
from workers.plane import LANES, plane

log = logging.getLogger(__name__)
HINT_S = 60
"""A hint that nobody took for so long has been repeated since."""
celery = Celery("everstep")


def ask(kind: str, row_id: str) -> None:
    """Sends the hint that a row wants a look, to the lane of its kind."""
    reconcile.apply_async((kind, row_id), queue=LANES[kind], retry=False, expires=HINT_S)


@celery.task(name="reconcile")  # type: ignore[untyped-decorator]
def reconcile(kind: str, row_id: str) -> None:
    plane().driver.reconcile(kind, row_id)


@celery.task(name="sweep")  # type: ignore[untyped-decorator]
def sweep(kind: str) -> None:
    sweeping.sweep(plane(), kind, ask)


@celery.task(name="release-orphans")  # type: ignore[untyped-decorator]
def release_orphans() -> None:
    orphans.release(plane())


@celery.task(name="collect-prices")  # type: ignore[untyped-decorator]
def collect_prices() -> None:
    prices.collect(plane().sessions, plane().clock, plane().prices)
    prices.observe_interruptions(plane().sessions, plane().clock)


@celery.task(name="start-updates")  # type: ignore[untyped-decorator]
def start_updates() -> None:
    patches.start_due(plane())


@celery.task(name="end-outages")  # type: ignore[untyped-decorator]
def end_outages() -> None:
    with unit_of_work(plane().sessions) as session:
        settle_outages(session, now=plane().clock.now())


@celery.task(name="pulse")  # type: ignore[untyped-decorator]
def pulse(queue: str) -> None:
    with unit_of_work(plane().sessions) as session:
        report_pulse(session, queue, now=plane().clock.now())


@celery.task(name="forget-answers")  # type: ignore[untyped-decorator]
def forget_answers() -> None:
    with unit_of_work(plane().sessions) as session:
        replay.forget(session, before=plane().clock.now() - replay.LONGEST)


@celery.task(name="forget-checkpoints")  # type: ignore[untyped-decorator]
def forget_checkpoints() -> None:
    tending.forget(plane())


@celery.task(name="observe-faults")  # type: ignore[untyped-decorator]
def observe_faults() -> None:
    tending.observe_faults(plane())
    tending.size_spares(plane())
    tending.size_spare_pools(plane())
