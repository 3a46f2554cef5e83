"""Alarms."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from models.alarm.states import AlarmState
from models.base import Base, Timed


class Alarm(Timed, Base):
    """Something outside that is watched, by the name under which software updates ask for it. ``reason`` is the watcher's."""

    __tablename__ = "alarm"

    name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[AlarmState]
    reason: Mapped[str | None]
    told_at: Mapped[datetime]
