from __future__ import annotations

import itertools

from everstep.checkpoint.poison import MOST, Failure, diagnosis, is_poisoned

numbers = itertools.count(1)


def failed(step: int, at: int, source: str = "memory") -> Failure:
    return Failure(step, "a", source, at, next(numbers))


def test_a_checkpoint_is_passed_over_after_two_failures_of_the_same_kind_and_not_before() -> None:
    once = [failed(30, 33)]
    assert not is_poisoned(once, 30, "a")
    assert not is_poisoned([*once, failed(30, 34)], 30, "a"), "in two ways is not twice in the same way"
    twice = [*once, failed(30, 33, "store")]
    assert is_poisoned(twice, 30, "a"), "the copies of a save are equal: another tier is no other checkpoint"
    assert not is_poisoned(twice, 20, "a")
    assert not is_poisoned(twice, 30, "b")


def test_one_failure_that_several_ranks_tell_is_one() -> None:
    told = failed(30, 33)
    assert diagnosis([told] * (3 * MOST)) is None
    assert not is_poisoned({told}, 30, "a")


def test_after_the_last_try_the_job_is_told_what_was_tried() -> None:
    words = diagnosis([failed(30, 33), failed(30, 33), failed(20, 21), failed(20, 21), failed(10, 12)])
    assert words is not None
    assert "step 30 from memory: NaN at step 33" in words
    assert "older pinned or exported step" in words


def test_failures_at_one_step_whatever_was_loaded_are_laid_to_that_step() -> None:
    words = diagnosis([failed(30, 33), failed(30, 33), failed(25, 33), failed(25, 33), failed(24, 33)])
    assert words is not None
    assert "NaN at step 33 whichever step it goes on from" in words
