"""``python -m workers.relay``: hears the database's notifications and sends them on as messages. Latency only.

Whatever it misses, the sweep finds seconds later. It never ends by itself: it reconnects for ever. Between notifications it sweeps, so that
a row which asked for a look in half a second does not wait for the beat.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import psycopg
from psycopg import sql

from models.job.table import Job
from models.notify import NUDGE
from workers import sweep, tasks
from workers.plane import LANES, Plane, plane
from workers.settings import Settings, celery_settings

log = logging.getLogger(__name__)
_QUIET_S = 0.25
"""How long it listens before it sweeps."""
_RETRY_S = 0.5
Ask = Callable[[str, str], None]


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings.from_environ()
    tasks.celery.conf.update(celery_settings(settings.broker_url))
    while True:
        try:
            relay(settings.database_url, plane(), tasks.ask)
        except Exception:
            log.exception("disconnected; trying again in %.1f s", _RETRY_S)
            time.sleep(_RETRY_S)


def relay(database_url: str, of: Plane, ask: Ask) -> None:
    """Listens and sends until the connection breaks."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True, connect_timeout=5) as connection:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(NUDGE)))
        log.info("listening")
        swept_at = 0.0
        while True:
            heard = [note.payload for note in connection.notifies(timeout=_QUIET_S, stop_after=1)]
            send(heard, ask)
            if time.monotonic() - swept_at >= _QUIET_S:
                for kind in sweep.ripe_kinds(of):
                    sweep.sweep(of, kind, ask)
                swept_at = time.monotonic()


def send(heard: Iterable[str], ask: Ask) -> None:
    """Sends each row of a burst once, jobs first: a recovery is worth more than anything else. A payload that is none of ours is ignored."""
    for payload in sorted(dict.fromkeys(heard), key=lambda payload: not payload.startswith(f"{Job.KIND}:")):
        kind, _, row_id = payload.partition(":")
        if kind in LANES and row_id:
            ask(kind, row_id)


if __name__ == "__main__":
    main()
