"""``/metrics``: what the control plane can be watched by, in Prometheus' text format (version 0.0.4).

It names jobs and nodes of every team and asks for no key, so only this machine gets it, unless ``EVERSTEP_METRICS_FROM`` lists networks.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from api.deps import ServicesDep
from api.operations.metrics import FAMILIES, Sample, samples
from api.settings import Settings
from models.errors import Forbidden
from models.session import look

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FORWARDED: Final = ("x-forwarded-for", "forwarded")

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    operation_id="Metrics",
    summary="Checkpoints, memory tiers, jobs and nodes, for Prometheus.",
    response_class=PlainTextResponse,
)
def metrics(request: Request, services: ServicesDep) -> PlainTextResponse:
    _check(request, services.settings)
    with look(services.reading()) as session:
        found = samples(session, now=services.clock.now())
    return PlainTextResponse(written(found), media_type=CONTENT_TYPE)


def written(found: Iterable[Sample]) -> str:
    """Each family once, with its help, also where it has no sample."""
    by_name: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    for sample in found:
        by_name[sample.name].append(sample)
    lines: list[str] = []
    for name, words in FAMILIES.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge", *(_line(sample) for sample in by_name[name])]
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {sample.value:.17g}" if labels else f"{sample.name} {sample.value:.17g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _check(request: Request, settings: Settings) -> None:
    """Raises Forbidden. What a proxy passes on comes from wherever: its own address says nothing."""
    host = request.client.host if request.client is not None else ""
    is_passed_on = any(name in request.headers for name in _FORWARDED)
    try:
        is_known = any(ip_address(host) in network for network in settings.metrics_from)
    except ValueError:
        is_known = False
    if is_passed_on or not is_known:
        raise Forbidden(message="Metrics are told to this machine alone; list the networks that may ask in EVERSTEP_METRICS_FROM.")
