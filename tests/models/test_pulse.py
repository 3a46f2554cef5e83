from __future__ import annotations

from datetime import timedelta

from sqlalchemy.orm import Session

from models.pulse import last_pulses, report_pulse
from tests import rows


def test_each_queue_shows_its_last_pulse(session: Session) -> None:
    assert last_pulses(session) == {}
    later = rows.NOW + timedelta(seconds=5)
    for queue, now in (("fast", rows.NOW), ("slow", rows.NOW), ("fast", later)):
        report_pulse(session, queue, now=now)
    assert last_pulses(session) == {"fast": later, "slow": rows.NOW}
