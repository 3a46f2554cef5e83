"""When a group's software is updated by itself: on its schedule, or when a newer release is there. Pure.

What was concluded is kept with the group (``Kept``), so that a look which is missed, or comes twice, changes nothing: a time that has passed
is acted on by the next look, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self

from models.schedule import next_time

NOTICE = timedelta(days=1)
"""How long after a newer release was seen a group is patched, unless the caller has set a date."""
_IDLE_WINDOW_S = 86_400
_DRAIN_S = 3_600


@dataclass(frozen=True)
class Kept:
    """``due_at`` is the next time of the schedule ``expression``; ``patch_at`` when patching begins, ``date_used`` the caller's date that was."""

    expression: str | None = None
    due_at: datetime | None = None
    patch_at: datetime | None = None
    date_used: str | None = None

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> Self:
        return cls(wire.get("expression"), _moment(wire.get("due_at")), _moment(wire.get("patch_at")), wire.get("date_used"))

    def write(self) -> dict[str, Any]:
        members = {
            "expression": self.expression,
            "due_at": None if self.due_at is None else self.due_at.isoformat(),
            "patch_at": None if self.patch_at is None else self.patch_at.isoformat(),
            "date_used": self.date_used,
        }
        return {name: value for name, value in members.items() if value is not None}


@dataclass(frozen=True)
class Seen:
    """``spec`` is the group's specification; ``newer`` the release that it should run, None if it does."""

    spec: Mapping[str, Any]
    kept: Kept
    newer: str | None
    may_start: bool = True


@dataclass(frozen=True)
class Start:
    """Members of ``models.software.changes.GroupWish``."""

    image: str
    deployment: Mapping[str, Any]
    patching: Mapping[str, Any]
    why: str


@dataclass(frozen=True)
class Outcome:
    kept: Kept
    start: Start | None = None


def look(seen: Seen, now: datetime) -> Outcome:
    """What to keep in mind about a group, and whether its update is to start now."""
    outcome = _of_schedule(seen, now)
    if outcome.start is not None:
        return outcome
    return _of_patching(replace(seen, kept=outcome.kept), now)


def _of_schedule(seen: Seen, now: datetime) -> Outcome:
    config, kept = seen.spec.get("ScheduledUpdateConfig"), seen.kept
    if config is None:
        return Outcome(replace(kept, expression=None, due_at=None))
    expression = config["ScheduleExpression"]
    if kept.expression != expression:
        return Outcome(replace(kept, expression=expression, due_at=next_time(expression, now)))
    if kept.due_at is None or kept.due_at > now or not seen.may_start:
        return Outcome(kept)
    following = replace(kept, due_at=next_time(expression, now))
    if seen.newer is None:
        return Outcome(following)
    return Outcome(following, Start(seen.newer, config.get("DeploymentConfig", {}), {}, f"its schedule {expression}"))


def _of_patching(seen: Seen, now: datetime) -> Outcome:
    config, kept = seen.spec.get("AutoPatchConfig"), seen.kept
    if config is None or seen.newer is None:
        return Outcome(replace(kept, patch_at=None))
    asked = config.get("PatchSchedule", {}).get("NextPatchDate")
    if asked is not None and asked != kept.date_used:
        kept = replace(kept, patch_at=datetime.fromisoformat(asked))
    elif kept.patch_at is None:
        kept = replace(kept, patch_at=now + NOTICE)
    if kept.patch_at is None or kept.patch_at > now or not seen.may_start:
        return Outcome(kept)
    begun = replace(kept, patch_at=None, date_used=asked)
    strategy = config["PatchingStrategy"]
    return Outcome(
        begun, Start(seen.newer, config.get("DeploymentConfig", {}), _treatment(config, now), f"automatic patching, {strategy}")
    )


def _treatment(config: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """How nodes with work on them are treated."""
    if config["PatchingStrategy"] == "DrainFirst":
        policy = config.get("DrainPolicy", {})
        return {
            "drain_s": policy.get("DrainTimeoutInSeconds", _DRAIN_S),
            "is_forced": policy.get("OnDrainTimeout", "Skip") == "Force",
        }
    until = now + timedelta(seconds=config.get("IdleWaitWindowInSeconds", _IDLE_WINDOW_S))
    return {"waits_for_idle": True, "as_one": config["PatchingStrategy"] == "WhenAllIdle", "until": until.isoformat()}


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
