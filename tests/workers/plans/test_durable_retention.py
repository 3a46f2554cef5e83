from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from everstep.tiers import Retention
from workers.plans.durable_retention import DurableStep, next_by_age, verdicts

NOW = datetime(2031, 5, 1, tzinfo=UTC)


def durable(*numbers: int, nbytes: int = 10, held: tuple[int, ...] = (), minutes_apart: int = 1) -> list[DurableStep]:
    age = {number: timedelta(minutes=minutes_apart * place) for place, number in enumerate(sorted(numbers, reverse=True))}
    return [DurableStep(number, nbytes, NOW - age[number], is_held=number in held) for number in numbers]


def left(steps, keep: Retention) -> list[int]:
    going = verdicts(steps, keep, NOW)
    return sorted(one.step for one in steps if one.step not in going)


def test_without_a_policy_everything_is_kept():
    assert verdicts(durable(10, 20, 30), Retention(), NOW) == {}


def test_the_last_ones_are_kept_and_the_reason_is_told_for_the_others():
    going = verdicts(durable(10, 20, 30, 40), Retention(last=2), NOW)
    assert going == {10: "it is not one of the 2 newest", 20: "it is not one of the 2 newest"}


def test_every_k_th_step_is_kept_beside_the_newest_ones():
    assert left(durable(50, 60, 70, 100, 110, 120), Retention(last=2, every=50)) == [50, 100, 110, 120]


def test_every_k_th_step_alone_keeps_the_newest_one_as_well():
    assert left(durable(50, 60, 70), Retention(every=50)) == [50, 70]


def test_a_step_that_is_too_old_goes_though_it_is_one_of_the_newest_or_a_multiple():
    steps = durable(50, 100, 150, minutes_apart=10)
    assert left(steps, Retention(last=3, every=50, max_age_s=900)) == [100, 150]
    assert next_by_age(steps, Retention(max_age_s=900), NOW) == timedelta(minutes=5)


def test_the_oldest_go_until_the_rest_takes_no_more_than_its_bytes():
    assert left(durable(1, 2, 3, 4), Retention(max_bytes=25)) == [3, 4]


def test_the_newest_step_stays_however_old_and_large_it_is():
    steps = [DurableStep(7, 10**12, NOW - timedelta(days=400))]
    assert left(steps, Retention(last=1, max_age_s=1.0, max_bytes=1)) == [7]


def test_what_is_pinned_or_being_exported_stays_and_counts_all_the_same():
    assert left(durable(1, 2, 3, 4, held=(1,)), Retention(max_bytes=20)) == [1, 4]


steps_of = st.sets(st.integers(0, 300), max_size=20).flatmap(
    lambda numbers: st.tuples(
        *(
            st.builds(
                DurableStep,
                st.just(number),
                st.integers(0, 50),
                st.integers(0, 10_000).map(lambda age: NOW - timedelta(seconds=age)),
                st.booleans(),
            )
            for number in sorted(numbers)
        )
    )
)
policies = st.builds(
    Retention,
    last=st.none() | st.integers(1, 5),
    every=st.none() | st.integers(1, 60),
    max_age_s=st.none() | st.floats(1, 10_000),
    max_bytes=st.none() | st.integers(0, 400),
)


@given(steps_of, policies)
def test_whatever_the_policy_the_newest_and_the_held_stay_and_a_second_look_takes_no_more(steps, keep):
    kept = left(steps, keep)
    assert {one.step for one in steps if one.is_held} <= set(kept)
    assert not steps or max(one.step for one in steps) in kept
    rest = [one for one in steps if one.step in kept]
    assert verdicts(rest, keep, NOW) == {}


@given(steps_of, policies)
def test_no_step_goes_that_no_rule_names(steps, keep):
    going = verdicts(steps, keep, NOW)
    newest = {one.step for one in sorted(steps, key=lambda one: one.step)[-(keep.last or 1) :]}
    for one in steps:
        if one.step in going and (one.step in newest or (keep.every is not None and one.step % keep.every == 0)):
            assert keep.max_age_s is not None or keep.max_bytes is not None
