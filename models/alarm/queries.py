"""Reads of alarms."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import collate, select
from sqlalchemy.orm import Session

from models.alarm.states import AlarmState
from models.alarm.table import Alarm
from models.paging import Cut, Page, page
from models.session import locked


def ringing(session: Session, names: Collection[str]) -> dict[str, str]:
    """Those of these alarms that ring, with the reason; one that nobody has set does not."""
    if not names:
        return {}
    wanted = select(Alarm).where(Alarm.name.in_(names), Alarm.state == AlarmState.ALARM).order_by(Alarm.name)
    return {row.name: row.reason or "no reason was given" for row in session.scalars(wanted)}


def get(session: Session, name: str) -> Alarm | None:
    """Locked."""
    return session.scalars(locked(select(Alarm).where(Alarm.name == name))).one_or_none()


def listed(session: Session, cut: Cut) -> Page[Alarm]:
    """By name."""
    return page(session, select(Alarm), (collate(Alarm.name, "C"), Alarm.name), lambda row: (row.name, row.name), cut)
