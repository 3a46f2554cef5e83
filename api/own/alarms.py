"""Operations of alarms, which roll a software update back."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from api.operations import alarms
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, NextToken, Wire
from models.alarm.states import AlarmState
from models.alarm.table import Alarm
from models.paging import Cut


class AlarmWord(StrEnum):
    OK = "OK"
    ALARM = "ALARM"


class AlarmTold(Asked):
    """What a watcher says of an alarm. The first word of it makes it known."""

    alarm_name: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r".*\S.*")]
    state: AlarmWord
    reason: Annotated[str, StringConstraints(max_length=1024)] | None = None


class AlarmsWanted(Asked):
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class AlarmShape(Wire):
    """``since`` is when it went into its state, ``told_at`` when a watcher last said so."""

    alarm_name: str
    state: AlarmWord
    reason: str | None
    since: datetime
    told_at: datetime


class AlarmList(Wire):
    alarms: tuple[AlarmShape, ...]
    next_token: str | None = None


def tell(work: Work, asked: AlarmTold) -> AlarmShape:
    """Sets an alarm. Software updates that name it turn back while it is in ALARM."""
    return _shape(alarms.tell(work, asked.alarm_name, AlarmState[asked.state.name], reason=asked.reason))


def listing(work: Work, asked: AlarmsWanted) -> AlarmList:
    """The alarms that were ever set, by name."""
    found = alarms.listed(work, Cut(limit=asked.max_results, cursor=asked.next_token))
    return AlarmList(alarms=tuple(_shape(row) for row in found.rows), next_token=found.cursor)


def _shape(row: Alarm) -> AlarmShape:
    return AlarmShape(
        alarm_name=row.name, state=AlarmWord[row.state.name], reason=row.reason, since=row.state_since, told_at=row.told_at
    )


ALARMS: OwnTable = (
    Own("SetAlarmState", "POST", "/v1/alarms", AlarmTold, AlarmShape, tell),
    Own("ListAlarms", "GET", "/v1/alarms", AlarmsWanted, AlarmList, listing, page_of="alarms"),
)
