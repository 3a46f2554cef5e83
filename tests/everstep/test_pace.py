from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.resilience.pace import Lag, Pace, Patience, Ticks

PATIENCE = Patience(after_s=5.0)


def trained(seconds: list[float], pace: Pace | None = None) -> tuple[Pace, float]:
    """A pace after steps that took so long each, and the time it is."""
    pace, now = pace or Pace(PATIENCE), 100.0
    pace.restart()
    pace.begin(now)
    for one in seconds:
        now += one
        pace.committed(now)
    return pace, now


def test_the_limit_is_ten_of_the_jobs_own_slow_steps():
    pace, _ = trained([2.0] * 30)
    assert pace.limit_s == 20.0


def test_short_steps_do_not_make_the_limit_shorter_than_the_floor():
    pace, _ = trained([0.01] * 30)
    assert pace.limit_s == PATIENCE.after_s


def test_one_slow_step_of_many_does_not_set_the_limit():
    pace, _ = trained([1.0] * 63 + [500.0])
    assert pace.limit_s == 10.0


def test_the_first_steps_of_a_generation_have_ten_times_the_floor():
    pace, now = trained([0.01, 0.01])
    assert pace.limit_s == 50.0
    pace.committed(now + 0.01)
    assert pace.limit_s == PATIENCE.after_s


def test_nothing_of_a_generation_counts_in_the_next_one():
    pace, now = trained([0.01] * 30)
    pace.set_aside(now)
    pace.restart()
    assert pace.seconds(now + 1000) is None
    pace.begin(now + 1000)
    assert pace.seconds(now + 1001) == 1.0
    assert pace.limit_s == PATIENCE.early_s


def test_what_is_set_aside_has_its_own_limit_and_costs_the_step_nothing():
    pace, now = trained([1.0] * 10)
    pace.set_aside(now + 0.5, limit_s=600.0)
    assert pace.limit_s == 600.0
    assert pace.seconds(now + 300.5) == 300.0
    pace.resume(now + 300.5)
    assert pace.seconds(now + 301.0) == 1.0
    pace.committed(now + 301.0)
    assert pace.limit_s == 10.0


def test_no_progress_is_expected_before_the_first_step_and_after_the_last():
    pace = Pace(PATIENCE)
    assert pace.seconds(1e9) is None
    pace.begin(0.0)
    pace.rest()
    assert pace.seconds(1e9) is None


def test_time_in_which_the_whole_process_stood_still_is_forgiven():
    ticks = Ticks(1.0)
    assert [ticks.lost(now) for now in (0.0, 1.0, 2.1, 3.0, 63.0, 64.0)] == [0.0, 0.0, 0.0, 0.0, 59.0, 0.0]
    pace, now = trained([0.1] * 10)
    pace.forgive(59.0)
    assert pace.seconds(now + 60.0) == 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 100.0), min_size=3, max_size=100))
def test_a_step_no_slower_than_those_before_is_never_a_hang(seconds):
    pace, now = trained(seconds)
    late = pace.seconds(now + sorted(seconds[-64:])[len(seconds[-64:]) // 2])
    assert late is not None
    assert late <= pace.limit_s


def said(steps: list[tuple[float, float]], ranks: int = 4) -> list[tuple[int, bool]]:
    """At which steps something was said of the rank, of its own seconds and each other's; and whether that it has caught up."""
    lag = Lag()
    told = [lag.add(own, own + other * (ranks - 1), ranks) for own, other in steps]
    return [(number, one.has_caught_up) for number, one in enumerate(told) if one is not None]


def lags(steps: list[tuple[float, float]], ranks: int = 4) -> list[int]:
    """At which steps it was said that the rank lags."""
    return [number for number, has_caught_up in said(steps, ranks) if not has_caught_up]


def test_a_rank_that_is_slow_in_most_of_the_last_steps_is_told_once():
    assert lags([(0.10, 0.05)] * 100) == [31]


def test_a_few_slow_steps_make_no_straggler_and_neither_do_microseconds():
    assert not lags(([(0.10, 0.05)] * 3 + [(0.05, 0.05)]) * 30)
    assert not lags([(0.004, 0.001)] * 100)


def test_a_rank_that_has_caught_up_and_lags_again_is_told_again():
    slow, fine = [(0.2, 0.05)] * 40, [(0.05, 0.05)] * 40
    assert len(lags(slow + fine + slow)) == 2


def test_that_a_rank_has_caught_up_is_said_once():
    slow, fine = [(0.2, 0.05)] * 40, [(0.05, 0.05)] * 100
    assert said(slow + fine) == [(31, False), (59, True)]


@given(st.lists(st.booleans(), max_size=400))
def test_what_is_said_of_a_rank_is_by_turns_that_it_lags_and_that_it_has_caught_up(course):
    told = [has_caught_up for _, has_caught_up in said([(0.2 if is_slow else 0.05, 0.05) for is_slow in course])]
    assert told == [bool(number % 2) for number in range(len(told))]


def test_a_rank_about_as_slow_as_the_limit_is_told_once():
    assert said(([(0.2, 0.05)] * 4 + [(0.05, 0.05)]) * 40 + ([(0.2, 0.05)] * 3 + [(0.05, 0.05)] * 2) * 40) == [(31, False)]


def test_the_slower_half_does_not_hide_behind_its_own_kind():
    lag = Lag()
    told = [lag.add(0.2, 0.2 * 2 + 0.05 * 2, 4) for _ in range(32)]
    assert told[-1] is not None


def test_a_lone_rank_lags_behind_nobody():
    assert not lags([(1.0, 0.0)] * 50, ranks=1)
