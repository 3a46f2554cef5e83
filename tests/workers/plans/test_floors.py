"""What the results of a group's nodes ask of the next one."""

from __future__ import annotations

import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from workers.plans.floors import ENOUGH, learned

RATES = st.lists(st.floats(1, 1e5), min_size=ENOUGH, max_size=32)


def test_too_few_results_ask_for_nothing():
    assert learned([100.0] * (ENOUGH - 1), [1.0] * 32) is None
    assert learned([100.0] * 32, [1.0] * (ENOUGH - 1)) is None


def test_a_third_of_the_usual_bandwidth_and_five_times_the_usual_latency_are_asked_for():
    usual = learned([300.0] * ENOUGH, [4.0] * ENOUGH)
    assert usual is not None
    assert (usual.mib_per_s, usual.ms) == (100.0, 20.0)
    quick = learned([300.0] * ENOUGH, [0.1] * ENOUGH)
    assert quick is not None
    assert quick.ms == 10.0, "less than that is noise"


@given(RATES, st.randoms())
def test_a_node_that_is_as_good_as_the_median_passes_in_whatever_order_the_results_came(rates, rng: random.Random):
    usual = learned(rates, rates)
    shuffled = rng.sample(rates, len(rates))
    assert learned(shuffled, shuffled) == usual
    assert usual is not None
    assert usual.mib_per_s <= statistics.median(rates)
    assert usual.ms >= statistics.median(rates)


@given(RATES)
def test_one_broken_node_among_many_lowers_the_floor_by_no_more_than_the_next_best_result(rates):
    before = learned([*rates, *rates, *rates], [1.0] * 32)
    after = learned([*rates, *rates, *rates, 0.001], [1.0] * 32)
    assert before is not None
    assert after is not None
    assert after.mib_per_s >= min(rates) / 3 - 1e-9 or after.mib_per_s >= before.mib_per_s / 2
