"""Writes of alarms."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models import events
from models.alarm import queries
from models.alarm.states import ALARM, AlarmState
from models.alarm.table import Alarm
from models.errors import NotFound
from models.events import About, Level
from models.move import advance


def report_alarm(session: Session, name: str, new: AlarmState, *, reason: str | None, now: datetime) -> Alarm:
    """What a watcher says. The first word of an alarm makes it known; the same word again renews its reason."""
    known = {"name": name, "state": ALARM.initial, "state_since": now, "reason": reason, "told_at": now}
    session.execute(insert(Alarm).values(known).on_conflict_do_nothing())
    alarm = queries.get(session, name)
    if alarm is None:
        raise NotFound(kind="Alarm", name=name)
    alarm.reason = reason
    alarm.told_at = now
    if alarm.state is not new:
        advance(ALARM, alarm, new, now=now)
        level = Level.WARN if new is AlarmState.ALARM else Level.INFO
        text = f"Alarm {name} {'rings' if new is AlarmState.ALARM else 'is quiet again'}: {reason or 'no reason was given'}"
        events.record(session, f"alarm {new}", text, about=About.ALARM, level=level, details={"alarm": name}, now=now)
    session.flush()
    return alarm
