"""User code that raises in processes which live on: who stays, how often it is tried again, and what the job says in the end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models.job.states import JobState
from tests.workers.plans.job_world import World, training
from workers.plans import retry
from workers.plans.job_seen import CountRestarts, GiveUp, Publish, RaisedSeen, Start


def raise_in(here: World, *ranks: int, words: str = "ValueError: no") -> None:
    for rank in ranks:
        process, number = here.rank(rank), here.seen.generation.number
        told = process.raised or RaisedSeen((), (), words)
        here.change(process.id, raised=RaisedSeen((*told.generations, number), (*told.at, here.now), words))


def tried_again(here: World) -> float:
    """Seconds until the same members are published once more, and have joined."""
    number, began = here.seen.generation.number, here.now
    for _ in range(400):
        here.look()
        if here.seen.generation.number > number:
            waited = here.now - began
            here.work()
            here.look()
            return waited.total_seconds()
        here.now += timedelta(seconds=0.25)
    message = f"never tried again: {here.seen.state}, {here.seen.why}"
    raise AssertionError(message)


def test_an_error_in_one_rank_is_tried_again_at_once_by_the_same_processes():
    here = training()
    members = here.seen.generation.members
    raise_in(here, 1)
    assert tried_again(here) == 0
    assert here.seen.generation.members == members
    assert here.count(GiveUp) == here.count(Start) == 0
    assert here.seen.restarts == 1
    assert here.seen.state is JobState.TRAINING


def test_all_ranks_that_raise_in_one_generation_cost_one_restart():
    here = training()
    raise_in(here, 0, 1, 2)
    tried_again(here)
    assert here.seen.restarts == 1
    assert here.count(Publish) == 1


def test_ranks_that_are_brought_down_at_once_cost_one_restart():
    """As by one batch that is too large for every device."""
    here = training(nodes=5, spares=2, max_restarts=5)
    for rank in (0, 1):
        here.exit(here.rank(rank).id, code=1)
    here.run(JobState.TRAINING)
    assert here.seen.restarts == 1
    here.exit(here.rank(0).id, code=1)
    here.look()
    assert here.seen.restarts == 2


def test_the_pause_before_each_further_try_is_twice_as_long():
    here = training(max_restarts=9)
    pauses = []
    for _ in range(5):
        raise_in(here, 1)
        pauses.append(tried_again(here))
    assert pauses == [0, 1, 2, 4, 8]


def test_a_job_that_raises_once_more_than_it_may_fails_with_the_traceback_of_the_rank_that_failed_first():
    here = training(max_restarts=1)
    raise_in(here, 2, words="Traceback of another try\nValueError: 1")
    tried_again(here)
    here.now += timedelta(seconds=30)
    raise_in(here, 1, words="Traceback of the first\nValueError: 2")
    here.now += timedelta(seconds=0.2)
    raise_in(here, 0, words="Traceback of what followed from it\nRuntimeError: 3")
    here.look()
    assert here.seen.state is JobState.FAILED
    assert here.seen.why.startswith("Traceback of the first")


def test_what_is_raised_and_what_ends_a_process_count_together():
    here = training(max_restarts=1)
    raise_in(here, 0, words="raised")
    tried_again(here)
    here.now += timedelta(seconds=30)
    here.fail_rank(1, "ended")
    here.look()
    assert here.seen.state is JobState.FAILED
    assert here.seen.why == "ended"


def test_a_rank_that_dies_while_another_has_raised_is_replaced_and_both_try_again():
    here = training(max_restarts=5)
    raise_in(here, 0)
    here.kill_rank(1)
    survivor = here.seen.generation.members[0]
    here.look()
    assert here.seen.generation.number == 2
    assert here.seen.generation.members[0] == survivor
    assert here.seen.restarts == 1


def test_a_process_that_raised_long_ago_and_is_killed_is_no_fault_of_user_code():
    here = training(max_restarts=5)
    raise_in(here, 0)
    tried_again(here)
    here.kill_rank(0)
    here.look()
    assert here.seen.restarts == 1
    assert here.count(CountRestarts) == 1


@pytest.mark.parametrize("ranks", [(), (1,)])
def test_nothing_is_due_unless_somebody_has_raised_in_this_generation(ranks: tuple[int, ...]):
    here = training(max_restarts=5)
    raise_in(here, *ranks)
    assert (retry.due(here.seen, here.seen.generation, here.seen.alive) is not None) is bool(ranks)
