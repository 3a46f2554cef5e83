"""``/healthz``: the process is alive. ``/readyz``: work flows, through database, broker and both kinds of worker, and back."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from api.deps import Services, ServicesDep
from models.pulse import last_pulses

QUEUES: Final = ("fast", "slow")
STALE_AFTER: Final = timedelta(seconds=15)
"""Beat sends a pulse through every queue each few seconds; this is several of them missed."""
_CONNECT_S: Final = 1.0

router = APIRouter(tags=["health"])


class Readiness(BaseModel):
    """``checks`` has ``ok`` or what is wrong, by the name of what was looked at."""

    status: str
    checks: dict[str, str]


@dataclass(frozen=True)
class Finding:
    """``why`` says what is wrong, None if nothing is."""

    name: str
    why: str | None


@router.get("/healthz", operation_id="Healthz", summary="The process is alive.")
def healthz() -> dict[str, str]:
    return {"status": "alive"}


@router.get(
    "/readyz",
    operation_id="Readyz",
    summary="Work flows, or which part of it does not.",
    response_model=Readiness,
    responses={503: {"model": Readiness}},
)
def readyz(services: ServicesDep) -> JSONResponse:
    findings = [_look_at_broker(services.settings.broker_url), *_look_at_pulses(services, services.clock.now())]
    is_ready = all(finding.why is None for finding in findings)
    checks = {finding.name: finding.why or "ok" for finding in findings}
    return JSONResponse({"status": "ready" if is_ready else "not ready", "checks": checks}, 200 if is_ready else 503)


def _look_at_broker(url: str) -> Finding:
    where = urlsplit(url)
    try:
        socket.create_connection((where.hostname or "127.0.0.1", where.port or 6379), timeout=_CONNECT_S).close()
    except OSError as error:
        return Finding("broker", f"cannot connect to {where.hostname}:{where.port}: {error}")
    return Finding("broker", None)


def _look_at_pulses(services: Services, now: datetime) -> list[Finding]:
    try:
        with services.sessions() as session:
            pulses = last_pulses(session)
    except SQLAlchemyError as error:
        return [Finding("database", f"does not answer: {type(error).__name__}")]
    since = services.settings.stack_began_at
    return [Finding("database", None), *(Finding(f"worker {queue}", _silence(pulses.get(queue), since, now)) for queue in QUEUES)]


def _silence(last: datetime | None, since: datetime | None, now: datetime) -> str | None:
    if last is None:
        return "no worker has ever answered through the broker"
    if since is not None and last < since:
        return "no worker has answered through the broker since the stack began"
    if now - last > STALE_AFTER:
        return f"no worker has answered through the broker for {(now - last).total_seconds():.0f} s"
    return None
