from __future__ import annotations

from datetime import timedelta

from sqlalchemy.orm import Session

from models.pulse import AGENTS, GAP, last_pulses, listening_since, report_pulse
from tests import rows


def test_each_queue_shows_its_last_pulse(session: Session) -> None:
    assert last_pulses(session) == {}
    later = rows.NOW + timedelta(seconds=5)
    for queue, now in (("fast", rows.NOW), ("slow", rows.NOW), ("fast", later)):
        report_pulse(session, queue, now=now)
    assert last_pulses(session) == {"fast": later, "slow": rows.NOW}


def test_the_door_listens_since_it_opened_after_its_last_gap(session: Session) -> None:
    second = timedelta(seconds=1)
    assert listening_since(session, now=rows.NOW) is None
    for now in (rows.NOW, rows.NOW + second, rows.NOW + second + GAP):
        report_pulse(session, AGENTS, now=now)
    assert listening_since(session, now=rows.NOW + 2 * second + GAP) == rows.NOW
    again = rows.NOW + timedelta(minutes=5)
    assert listening_since(session, now=again) == again
    report_pulse(session, AGENTS, now=again)
    assert listening_since(session, now=again + second) == again
