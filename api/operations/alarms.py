"""Use-cases of alarms."""

from __future__ import annotations

from api.operations.work import Work
from models.alarm import changes, queries
from models.alarm.states import AlarmState
from models.alarm.table import Alarm
from models.paging import Cut, Page
from models.software import queries as software
from models.software.changes import request_look


def tell(work: Work, name: str, state: AlarmState, *, reason: str | None) -> Alarm:
    """What a watcher says of an alarm; the open updates that name it look at once."""
    alarm = changes.report_alarm(work.session, name, state, reason=reason, now=work.now)
    for update in software.watching(work.session, name):
        request_look(work.session, update)
    return alarm


def listed(work: Work, cut: Cut) -> Page[Alarm]:
    return queries.listed(work.session, cut)
