"""What a plan answers: actions, each with its why, and when to look again if nothing happens before. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

A = TypeVar("A")


@dataclass(frozen=True)
class Decision(Generic[A]):
    """``again_in`` is None when only news can change the answer: whoever brings news wakes the row."""

    actions: tuple[A, ...] = ()
    again_in: timedelta | None = None


def soonest(*spans: timedelta | None) -> timedelta | None:
    """The shortest of the spans that are given; never less than nothing."""
    given = [max(span, timedelta(0)) for span in spans if span is not None]
    return min(given, default=None)
