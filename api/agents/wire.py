"""Reads the bodies of the agents' door, strictly: a number is no string and a boolean no number. What is wrong is named by its path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import Discriminator, Tag, TypeAdapter, ValidationError

from everstep import protocol
from everstep.evidence import AnomalyReport, HungReport, StragglerReport
from everstep.examination import HealthReport
from everstep.hardware import HardwareFault, HardwareReport
from everstep.notices import CutReport, SpotNotice
from everstep.tiers import CopiesReport, DurableReport, SavedReport, TierReport

T = TypeVar("T")

_NUL = (b"\\u0000", b"\\ufffd")
"""Postgres keeps no NUL in text, and a traceback or a log line may well hold one."""


class Malformed(ValueError):
    """The body is not what this path takes. ``member`` is the path of what is wrong, ``index`` the report it lies in."""

    def __init__(self, message: str, *, member: str | None = None, index: int | None = None) -> None:
        super().__init__(message)
        self.member = member
        self.index = index


def _kind(report: Any) -> str:
    kind = report.get("kind") if isinstance(report, dict) else getattr(report, "kind", "")
    return kind if isinstance(kind, str) else ""


AnyReport = Annotated[
    Annotated[protocol.ProcessReport, Tag("process")]
    | Annotated[protocol.BrokenReport, Tag("broken")]
    | Annotated[protocol.ReformedReport, Tag("reformed")]
    | Annotated[protocol.ProgressReport, Tag("progress")]
    | Annotated[protocol.FinishedReport, Tag("finished")]
    | Annotated[protocol.FailedReport, Tag("failed")]
    | Annotated[protocol.LifecycleStarted, Tag("lifecycle-started")]
    | Annotated[protocol.LifecycleReport, Tag("lifecycle")]
    | Annotated[protocol.LogReport, Tag("log")]
    | Annotated[protocol.FaultReport, Tag("fault")]
    | Annotated[HealthReport, Tag("health")]
    | Annotated[CopiesReport, Tag("copies")]
    | Annotated[DurableReport, Tag("durable")]
    | Annotated[TierReport, Tag("tier")]
    | Annotated[SavedReport, Tag("saved")]
    | Annotated[HardwareReport, Tag("hardware")]
    | Annotated[HardwareFault, Tag("hardware_fault")]
    | Annotated[SpotNotice, Tag("spot_notice")]
    | Annotated[CutReport, Tag("cut")]
    | Annotated[HungReport, Tag("hung")]
    | Annotated[StragglerReport, Tag("straggler")]
    | Annotated[AnomalyReport, Tag("anomaly")],
    Discriminator(_kind),
]


@dataclass(frozen=True)
class Numbered:
    """``sequence`` grows by the agent's count within its boot."""

    sequence: int
    report: AnyReport


@dataclass(frozen=True)
class Batch:
    """``POST /agent/v1/reports``."""

    boot: str
    reports: tuple[Numbered, ...]


@dataclass(frozen=True)
class NextBeat:
    """The answer to a beat: in how many seconds the next one is wanted."""

    next_s: float


@dataclass(frozen=True)
class Problem:
    """RFC 9457. ``member`` is the path of what is wrong; ``index`` that of the report in its batch, which the agent is to drop."""

    title: str
    status: int
    detail: str
    member: str | None = None
    index: int | None = None


REGISTRATION: TypeAdapter[protocol.Registration] = TypeAdapter(protocol.Registration)
BEAT: TypeAdapter[protocol.Beat] = TypeAdapter(protocol.Beat)
BATCH: TypeAdapter[Batch] = TypeAdapter(Batch)
_LIMITS = {"sequence": 2**63, "rendezvous_port": 2**16, "start": 2**31}
"""Numbers that a row has to hold. A beat that cannot be written would fail the statement that writes everybody's beats, for ever."""


def read(adapter: TypeAdapter[T], body: bytes) -> T:
    """Raises Malformed."""
    try:
        told = adapter.validate_json(body.replace(*_NUL), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        member, index = _where(first["loc"])
        message = f"{member}: {first['msg']}" if member else first["msg"]
        raise Malformed(message, member=member, index=index) from error
    _check_numbers(told)
    for index, item in enumerate(told.reports if isinstance(told, Batch) else ()):
        _check_numbers(item, index)
    return told


def _check_numbers(told: object, index: int | None = None) -> None:
    for name, limit in _LIMITS.items():
        if not 0 <= getattr(told, name, 0) < limit:
            member = name if index is None else f"reports[{index}].{name}"
            message = f"{member}: must be at least 0 and less than {limit}"
            raise Malformed(message, member=member, index=index)


def _where(loc: tuple[int | str, ...]) -> tuple[str | None, int | None]:
    """The path as a person writes it, without the union's tag, and the report's index."""
    index = loc[1] if len(loc) > 1 and loc[0] == "reports" and isinstance(loc[1], int) else None
    is_tagged = index is not None and len(loc) > 3 and loc[2] == "report"  # noqa: PLR2004  (reports, index, "report", tag)
    parts = [part for position, part in enumerate(loc) if not (is_tagged and position == 3)]  # noqa: PLR2004
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return path.lstrip(".") or None, index
