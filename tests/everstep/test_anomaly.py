from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.resilience.anomaly import Losses, LossPolicy, What, judge

NAN = float("nan")


def steady(count: int = 64, level: float = 2.0, noise: float = 0.1) -> Losses:
    chance = random.Random(7)
    known = Losses()
    for _ in range(count):
        known.accept(level + chance.uniform(-noise, noise), 64)
    return known


@pytest.mark.parametrize("loss", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("action", ["stop", "skip", "rollback"])
def test_a_loss_that_is_no_number_is_reacted_to_from_the_first_step_on(loss, action):
    verdict = judge(LossPolicy(nan=action), Losses(), 0, loss)
    assert verdict is not None
    assert (verdict.what, verdict.action) == (What.NAN, action)


def test_a_loss_that_nobody_told_is_no_anomaly():
    assert judge(LossPolicy(spike="skip"), steady(), 5, None) is None


def test_a_spike_is_far_above_the_median_and_not_merely_the_highest_so_far():
    policy = LossPolicy(spike="skip")
    assert judge(policy, steady(), 64, 2.3) is None
    verdict = judge(policy, steady(), 64, 4.0)
    assert verdict is not None
    assert (verdict.what, verdict.action) == (What.SPIKE, "skip")


def test_a_loss_far_below_the_others_is_good_news():
    assert judge(LossPolicy(spike="skip"), steady(), 64, 0.01) is None


def test_earlier_spikes_do_not_hide_a_later_one():
    known = steady(57)
    for _ in range(7):
        known.accept(500.0, 64)
    assert judge(LossPolicy(spike="skip"), known, 64, 500.0) is not None


def test_losses_that_hardly_differ_do_not_make_a_spike_of_every_loss():
    known = Losses(recent=[1.0] * 40)
    assert judge(LossPolicy(spike="skip"), known, 40, 1.001) is None
    assert judge(LossPolicy(spike="skip"), Losses(recent=[0.0] * 40), 40, 1.0) is None


def test_nothing_is_a_spike_before_sixteen_losses_are_known():
    assert judge(LossPolicy(spike="stop"), steady(15), 15, 1e9) is None
    assert judge(LossPolicy(spike="stop"), steady(16), 16, 1e9) is not None


def test_one_reaction_too_many_within_the_window_stops_the_job():
    policy, known = LossPolicy(nan="skip", limit=2), Losses()
    for step in (10, 20):
        assert judge(policy, known, step, NAN).action == "skip"
        known.react(step)
    stopped = judge(policy, known, 30, NAN)
    assert stopped.action == "stop"
    assert "after steps 10, 20 this is once too often (limit=2)" in stopped.words
    assert judge(policy, known, 85, NAN).action == "skip", "reactions of long ago do not count"


def test_the_same_step_judged_again_is_no_further_reaction():
    policy, known = LossPolicy(nan="skip", limit=1), Losses()
    known.react(10)
    assert judge(policy, known, 10, NAN).action == "skip"


def test_going_back_passes_the_step_over_and_bounds_the_checkpoints():
    known = steady(8)
    known.go_back(50, 10)
    assert (known.passed_over, known.reactions, known.not_after) == ([50], [50], 40)
    known.went_back(Losses(recent=[1.0], reactions=[3], passed_over=[3]))
    assert (known.recent, known.passed_over, known.reactions, known.not_after) == ([1.0], [3, 50], [3, 50], None)


def test_who_comes_late_learns_what_was_decided():
    late = Losses()
    late.learn([Losses(reactions=[5], passed_over=[5], not_after=3), Losses(not_after=2)])
    assert (late.passed_over, late.not_after) == ([5], 2)


@pytest.mark.parametrize(
    "wrong", [{"nan": "ignore"}, {"spike": "warn"}, {"window": 3}, {"factor": 0.0}, {"limit": -1}, {"rollback_steps": -1}]
)
def test_a_policy_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="LossPolicy"):
        LossPolicy(**wrong)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.1, 10.0), max_size=80), st.lists(st.integers(0, 100), max_size=5), st.floats(0.0, 1e6))
def test_who_takes_over_what_was_remembered_decides_alike(losses, reactions, loss):
    policy, known = LossPolicy(nan="skip", spike="rollback"), Losses()
    for one in losses:
        known.accept(one, policy.window)
    for step in reactions:
        known.react(step)
    taken = Losses.from_wire(json.loads(json.dumps(known.to_wire())))
    assert judge(policy, taken, 90, loss) == judge(policy, known, 90, loss)
    assert len(known.recent) <= policy.window
