from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from everstep.checkpoint.interval import (
    ASSUMED_MTBF_S,
    HIDDEN_COST,
    LONGEST_DURABLE_S,
    LONGEST_S,
    Costs,
    Interval,
    durable_interval,
    memory_interval,
    steadied,
)
from everstep.checkpoint.policy import FIRST_SAVE_AFTER, Asks, Policy, Schedule, Wanted, decided, in_force

seconds = st.floats(0.0, 1e4)
costs = st.builds(
    Costs, step_s=st.floats(1e-3, 100), stall_s=seconds, save_s=seconds, drain_s=seconds, mtbf_s=st.none() | st.floats(1, 1e7)
)


def test_between_its_bounds_the_interval_is_youngs() -> None:
    seen = Costs(step_s=0.5, stall_s=0.2, save_s=2.0, mtbf_s=3600.0)
    expected = math.sqrt(2 * (0.2 + HIDDEN_COST * 2.0) * 3600.0)
    assert memory_interval(seen).steps == round(expected / 0.5)


@given(costs)
def test_saves_never_queue_and_none_is_put_off_for_ever(seen: Costs) -> None:
    for found, busy_s, longest_s in (
        (memory_interval(seen), seen.save_s, LONGEST_S),
        (durable_interval(seen), seen.drain_s, LONGEST_DURABLE_S),
    ):
        between_s = found.steps * seen.step_s
        assert between_s >= 2 * busy_s - seen.step_s
        assert found.steps == 1 or between_s <= max(longest_s, 2 * busy_s) + seen.step_s


@given(costs, st.floats(1.0, 100.0))
def test_dearer_saves_and_rarer_faults_are_saved_less_often(seen: Costs, factor: float) -> None:
    dearer = Costs(seen.step_s, seen.stall_s * factor, seen.save_s, seen.drain_s, seen.mtbf_s)
    rarer = Costs(seen.step_s, seen.stall_s, seen.save_s, seen.drain_s, (seen.mtbf_s or ASSUMED_MTBF_S) * factor)
    assert memory_interval(dearer).steps >= memory_interval(seen).steps
    assert memory_interval(rarer).steps >= memory_interval(seen).steps


def test_an_interval_says_what_it_follows_from() -> None:
    why = memory_interval(Costs(step_s=0.5, stall_s=0.2, save_s=2.0)).why
    assert "stall 0.2 s" in why
    assert "every 1.44e+04 s (assumed)" in why
    assert "a step takes 0.5 s" in why


def test_an_interval_is_changed_only_for_one_that_is_far_from_it() -> None:
    now = Interval(100, "measured before")
    assert steadied(now, Interval(120, "x")) is now
    assert steadied(now, Interval(130, "x")).steps == 130
    assert steadied(None, Interval(1, "x")).steps == 1


def test_the_job_file_decides_before_the_script_and_the_script_before_the_costs() -> None:
    assert in_force(Policy(5, None, 60.0), Policy(7, 70, None)) == Policy(5, 70, 60.0)


def test_fixed_intervals_are_multiples_and_a_missed_one_is_made_up_for() -> None:
    schedule = Schedule(Policy(10, 50), has_memory=True, has_store=True)
    wanted = {step: schedule.wants(step) for step in (9, 10, 11)}
    assert [bool(wanted[step]) for step in (9, 10, 11)] == [False, True, True]
    schedule.saved(11, wanted[11])
    assert not schedule.wants(19)
    assert schedule.wants(20) == Wanted(memory=True)
    schedule.saved(20, Wanted(memory=True))
    assert schedule.wants(50) == Wanted(memory=True, durable=True)


def test_a_save_in_which_a_rank_died_is_due_again() -> None:
    schedule = Schedule(Policy(10, 20), has_memory=True, has_store=True)
    schedule.saved(20, schedule.wants(20))
    assert not schedule.wants(21)
    schedule.came_to_nothing()
    assert schedule.wants(21) == Wanted(memory=True, durable=True)


def test_without_a_memory_tier_only_durable_saves_are_wanted_and_without_any_tier_none() -> None:
    assert Schedule(Policy(10, 50), has_memory=False, has_store=True).wants(50) == Wanted(durable=True)
    assert not Schedule(Policy(10, 50), has_memory=False, has_store=True).wants(10)
    assert not Schedule(Policy(), has_memory=False, has_store=False).wants(10**6)


def test_who_asks_for_a_save_to_memory_gets_a_durable_one_where_there_is_no_memory() -> None:
    asked = Wanted(memory=True)
    assert Schedule(Policy(), has_memory=False, has_store=True).possible(asked) == Wanted(durable=True)
    assert Schedule(Policy(), has_memory=True, has_store=True).possible(asked) == asked
    assert Schedule(Policy(), has_memory=True, has_store=False).possible(Wanted(durable=True)) == Wanted()


def test_an_automatic_interval_is_found_after_the_first_save_and_said_when_it_changes() -> None:
    schedule = Schedule(Policy(), has_memory=True, has_store=True)
    schedule.begins_at(100)
    assert not schedule.wants(100 + FIRST_SAVE_AFTER - 1)
    assert schedule.wants(100 + FIRST_SAVE_AFTER)
    schedule.saved(103, Wanted(memory=True, durable=True))
    why = schedule.measured(Costs(step_s=0.1, stall_s=0.05, save_s=0.5, drain_s=2.0, mtbf_s=3600.0))
    assert why is not None
    assert why.startswith(f"memory: every {schedule.memory_every} steps")
    assert f"durable: every {schedule.durable_every} steps" in why
    assert schedule.memory_every is not None
    assert not schedule.wants(103 + schedule.memory_every - 1)
    assert schedule.wants(103 + schedule.memory_every)


def test_a_busy_rank_puts_a_save_off_unless_somebody_is_about_to_be_ended() -> None:
    asked = Asks(memory=True, durable=True)
    assert decided(summed(asked, Asks())) == Wanted(memory=True, durable=True)
    assert decided(summed(asked, Asks(busy=True))) == Wanted()
    assert decided(summed(Asks(durable=True, urgent=True), Asks(busy=True))) == Wanted(memory=True, durable=True)
    assert decided(summed(Asks(urgent=True), Asks(busy=True))) == Wanted(memory=True), "no store, no durable step"


def summed(*asks: Asks) -> list[float]:
    return [sum(column) for column in zip(*(one.as_numbers() for one in asks), strict=True)]
