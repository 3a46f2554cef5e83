from __future__ import annotations

from workers.fleet.timeline import Timeline


def test_what_happens_happens_in_the_order_of_its_moments_and_not_before():
    now = [0.0]
    timeline = Timeline(lambda: now[0], began_at=1_000.0, speed=10.0)
    seen = []
    timeline.after(5, lambda: seen.append("late"))
    timeline.after(2, lambda: (seen.append("early"), timeline.after(1, lambda: seen.append("next"))))
    timeline.after(2, lambda: seen.append("early too"))
    assert timeline.advance() == 0
    now[0] = 4.0
    timeline.advance()
    assert seen == ["early", "early too"]
    now[0] = 5.0
    timeline.advance()
    assert seen == ["early", "early too", "late", "next"]
    assert timeline.next_at is None


def test_ten_seconds_of_a_scenario_pass_in_a_real_one_at_speed_ten():
    timeline = Timeline(lambda: 20.0, began_at=1_000.0, speed=10.0)
    assert timeline.real(5) == 0.5
    assert timeline.unix() == 1_002.0


def test_whoever_waits_for_the_next_moment_is_told_of_a_sooner_one():
    timeline = Timeline(lambda: 0.0, began_at=0.0)
    told = []
    timeline.hurried = lambda: told.append(timeline.next_at)
    for seconds in (5, 7, 3):
        timeline.after(seconds, lambda: None)
    assert told == [5, 3]
