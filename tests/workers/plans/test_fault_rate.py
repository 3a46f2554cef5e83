from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from workers.plans.fault_rate import Observed, estimate, faults_among, is_news

HOUR = timedelta(hours=1)


def test_before_anything_was_seen_a_big_job_has_to_expect_a_fault_sooner_than_a_small_one():
    nothing = Observed(faults=0, node_hours=0.0)
    assert estimate(nothing, 2000).mtbf < 4 * HOUR
    assert estimate(nothing, 1).mtbf > 24 * 20 * HOUR


def test_many_observations_count_for_more_than_what_was_believed_before():
    found = estimate(Observed(faults=100, node_hours=1000.0), nodes=4)
    assert 2.4 * HOUR < found.mtbf < 2.6 * HOUR


def test_a_few_faults_in_the_first_hours_are_taken_seriously():
    assert estimate(Observed(faults=6, node_hours=4.0), nodes=4).mtbf < 2 * HOUR


def test_the_inputs_are_told_in_words():
    why = estimate(Observed(faults=3, node_hours=72.0), nodes=2).why
    assert "3 faults in 72.0 node-hours" in why
    assert "2 nodes" in why


def test_a_small_change_is_no_news():
    found = estimate(Observed(faults=10, node_hours=100.0), nodes=2)
    told = found.mtbf.total_seconds()
    assert is_news(None, found)
    assert not is_news(told * 1.1, found)
    assert is_news(told * 2, found)


def test_a_membership_that_lost_somebody_is_a_fault_and_one_that_is_published_again_is_none():
    assert faults_among([]) == 0
    assert faults_among([("a", "b"), ("a", "b"), ("a", "c"), ("d", "e")]) == 2


def test_a_member_that_was_replaced_for_being_slow_is_no_fault():
    assert faults_among([("a", "b"), ("a", "c"), ("d", "c")], {1}) == 1


@given(st.integers(0, 10_000), st.floats(0, 1e6), st.integers(0, 10_000))
def test_an_estimate_is_always_between_a_minute_and_a_month(faults, node_hours, nodes):
    assert timedelta(minutes=1) <= estimate(Observed(faults, node_hours), nodes).mtbf <= timedelta(days=30)


@given(st.integers(0, 100), st.floats(1, 1e4), st.integers(1, 100))
def test_more_faults_or_more_nodes_never_mean_more_time_between_them(faults, node_hours, nodes):
    here = estimate(Observed(faults, node_hours), nodes).mtbf
    assert estimate(Observed(faults + 1, node_hours), nodes).mtbf <= here
    assert estimate(Observed(faults, node_hours), nodes + 1).mtbf <= here
