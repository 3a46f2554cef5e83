"""The Celery application: ``celery -A workers.app worker`` and ``celery -A workers.app beat``. Composition root of the workers."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.signals import beat_init, worker_process_init

from workers import tasks
from workers.plane import LANES, plane
from workers.settings import (
    FAST,
    FORGET_EVERY,
    ORPHANS_EVERY,
    PRICES_EVERY,
    PULSE_EVERY,
    SLOW,
    SWEEP_EVERY,
    TEND_EVERY,
    UPDATES_EVERY,
    Settings,
    celery_settings,
)

log = logging.getLogger(__name__)


def create_app(settings: Settings) -> Celery:
    """The application, configured. The schedule may run twice, or not at all for a while: every entry is safe to repeat."""
    app = tasks.celery
    app.conf.update(celery_settings(settings.broker_url))
    app.conf.beat_schedule = schedule()
    return app


def schedule() -> dict[str, Any]:
    """A message that has waited longer than its period is worth nothing: the next one says the same."""
    entries: dict[str, Any] = {}
    for kind, queue in LANES.items():
        entries[f"sweep-{kind}"] = _entry(tasks.sweep.name, kind, queue, SWEEP_EVERY.total_seconds())
    for queue in (FAST, SLOW):
        entries[f"pulse-{queue}"] = _entry(tasks.pulse.name, queue, queue, PULSE_EVERY.total_seconds())
    entries["end-outages"] = _entry(tasks.end_outages.name, None, FAST, SWEEP_EVERY.total_seconds())
    entries["forget-answers"] = _entry(tasks.forget_answers.name, None, FAST, FORGET_EVERY.total_seconds())
    entries["start-updates"] = _entry(tasks.start_updates.name, None, FAST, UPDATES_EVERY.total_seconds())
    entries["collect-prices"] = _entry(tasks.collect_prices.name, None, SLOW, PRICES_EVERY.total_seconds())
    entries["orphans"] = _entry(tasks.release_orphans.name, None, SLOW, ORPHANS_EVERY.total_seconds())
    entries["forget-checkpoints"] = _entry(tasks.forget_checkpoints.name, None, FAST, TEND_EVERY.total_seconds())
    entries["observe-faults"] = _entry(tasks.observe_faults.name, None, FAST, TEND_EVERY.total_seconds())
    return entries


def _entry(task: str, argument: str | None, queue: str, seconds: float) -> dict[str, Any]:
    arguments = () if argument is None else (argument,)
    return {"task": task, "args": arguments, "schedule": seconds, "options": {"queue": queue, "expires": seconds * 2}}


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _warm_up(**_: Any) -> None:
    """Connects and compiles before the first message: a recovery must not pay for it. Without a database it is paid for later."""
    try:
        plane().driver.reconcile("job", "none")
    except Exception:
        log.exception("the worker starts cold")


@beat_init.connect  # type: ignore[untyped-decorator]
def _pulse_at_once(**_: Any) -> None:
    """A schedule first waits for its period; whoever waits for the stack to be ready should not have to wait for that too."""
    for queue in (FAST, SLOW):
        tasks.pulse.apply_async((queue,), queue=queue, expires=PULSE_EVERY.total_seconds() * 2, retry=False)


app = create_app(Settings.from_environ())
