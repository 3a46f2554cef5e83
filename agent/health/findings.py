"""What a check answers: a finding says what was measured, against what, in words that go into an event."""

from __future__ import annotations

from everstep.examination import Finding, Verdict


def at_least(kind: str, what: str, measured: float, floor: float, unit: str) -> Finding:
    """Passed, if it is as much as it must be."""
    return _compared(kind, what, measured, floor, unit, is_good=measured >= floor, words="at least")


def at_most(kind: str, what: str, measured: float, ceiling: float, unit: str) -> Finding:
    """Passed, if it is no more than it may be."""
    return _compared(kind, what, measured, ceiling, unit, is_good=measured <= ceiling, words="at most")


def failed(kind: str, says: str) -> Finding:
    return Finding(kind=kind, verdict=Verdict.FAILED, says=f"{kind}: {says}")


def skipped(kind: str, says: str) -> Finding:
    return Finding(kind=kind, verdict=Verdict.SKIPPED, says=f"{kind}: {says}")


def passed(kind: str, says: str) -> Finding:
    return Finding(kind=kind, verdict=Verdict.PASSED, says=f"{kind}: {says}")


def _compared(kind: str, what: str, measured: float, limit: float, unit: str, *, is_good: bool, words: str) -> Finding:
    must = "" if is_good else f", it must be {words} {limit:g} {unit}"
    return Finding(
        kind=kind,
        verdict=Verdict.PASSED if is_good else Verdict.FAILED,
        says=f"{kind}: {what} is {measured:.4g} {unit}{must}",
        measured=round(measured, 4),
        threshold=limit,
        unit=unit,
    )
