from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import World, training
from workers.plans.hangs import MISMATCH_CAUSE, hanging
from workers.plans.job_seen import GiveUp, HangSeen, Publish

STACK = 'Thread MainThread (it trains):\n  File "train.py", line 7, in train\n    compute()\nThread everstep-watcher:\n  File "watcher.py", line 1'


def hangs(here: World, rank: int, how: str, *, step: int = 5, seconds: float = 25.0, limit_s: float = 20.0) -> None:
    """The agent of a rank tells that it makes no progress."""
    here.change(here.rank(rank).id, hang=HangSeen(here.seen.generation.number, step, how, seconds, limit_s, STACK, here.now))


def at_step(step: int, **more) -> World:
    here = training(**more)
    newest = replace(here.seen.generations[-1], reached=step)
    here.change_seen(step=step, generations=(*here.seen.generations[:-1], newest))
    return here


def given_up(actions) -> list[GiveUp]:
    return [action for action in actions if isinstance(action, GiveUp)]


@pytest.mark.parametrize("waits_at", [5, 6])
def test_a_rank_that_computes_while_another_waits_for_it_is_replaced(waits_at):
    here = at_step(waits_at)
    hung = here.rank(1)
    hangs(here, 1, "computing")
    hangs(here, 0, "waiting", step=waits_at)
    (one,) = given_up(here.look())
    assert one.process == hung.id
    assert (
        'step 5: no progress for 25 s, and it computes while the others wait for it (File "train.py", line 7, in train)' in one.why
    )
    here.run(JobState.TRAINING)
    assert here.rank(1).id != hung.id
    assert here.rank(0).state is ProcessState.READY


def test_ranks_that_were_slow_together_are_not_blamed_because_one_of_them_is_done_first():
    here = at_step(5)
    told = here.now
    for rank, how in ((1, "computing"), (2, "computing"), (0, "waiting")):
        here.change(here.rank(rank).id, hang=HangSeen(here.seen.generation.number, 5, how, 25.0, 20.0, STACK, told, told))
    assert not here.look()
    here.now += timedelta(seconds=5)
    again = HangSeen(here.seen.generation.number, 5, "computing", 30.0, 20.0, STACK, here.now, told)
    here.change(here.rank(1).id, hang=again)
    (one,) = given_up(here.look())
    assert one.process == again_of(here, again)


def again_of(here: World, hang: HangSeen) -> str:
    return next(process.id for process in here.seen.processes if process.hang == hang)


def test_a_generation_that_does_steps_again_is_watched_as_well():
    here = at_step(40)
    newest = replace(here.seen.generations[-1], reached=12)
    here.change_seen(generations=(*here.seen.generations[:-1], newest))
    hangs(here, 0, "waiting", step=12)
    hangs(here, 1, "computing", step=12)
    assert len(given_up(here.look())) == 1


def test_the_ranks_that_wait_for_a_hung_one_are_left_alone():
    here = at_step(5)
    hangs(here, 0, "waiting")
    hangs(here, 2, "waiting")
    assert not here.look()


def test_ranks_that_all_compute_may_be_busy_and_are_left_alone():
    here = at_step(5)
    for rank in range(3):
        hangs(here, rank, "computing", seconds=500.0)
    assert not here.look()


def test_what_was_told_before_the_job_went_on_is_no_evidence():
    here = at_step(7)
    hangs(here, 1, "computing")
    hangs(here, 0, "waiting")
    assert not here.look()


def test_a_witness_of_an_earlier_step_is_none():
    here = at_step(5)
    hangs(here, 0, "waiting", step=4)
    hangs(here, 1, "computing")
    assert not here.look()


def test_what_was_told_in_an_earlier_generation_is_no_evidence():
    here = at_step(5)
    here.kill_rank(2)
    here.run(JobState.TRAINING)
    for rank, how in ((0, "waiting"), (1, "computing")):
        hangs(here, rank, how)
        here.change(here.rank(rank).id, hang=replace(here.rank(rank).hang, generation=1))
    assert not given_up(here.look())


def test_a_frozen_rank_needs_no_witness_and_neither_does_a_frozen_spare():
    here = at_step(5)
    spare = next(process for process in here.seen.alive if process.id not in here.seen.generation.members)
    here.change(spare.id, hang=HangSeen(0, 0, "frozen", 210.0, 200.0))
    hangs(here, 2, "frozen")
    assert {one.process for one in given_up(here.step())} == {here.rank(2).id, spare.id}


def test_one_of_which_nothing_is_heard_is_given_up_when_all_others_have_waited_for_very_long():
    here = at_step(5)
    silent = here.rank(1).id
    for rank in (0, 2):
        hangs(here, rank, "waiting", seconds=599.0)
    assert not here.look()
    hangs(here, 0, "waiting", seconds=650.0)
    assert not here.look()
    hangs(here, 2, "waiting", seconds=640.0)
    (one,) = given_up(here.look())
    assert one.process == silent
    assert "all others have waited for 640 s, and it says nothing" in one.why


def test_a_lone_rank_is_given_up_only_after_very_long():
    here = at_step(5, replicas=1, nodes=2)
    hangs(here, 0, "computing", seconds=599.0)
    assert not here.look()
    hangs(here, 0, "computing", seconds=601.0)
    assert hanging(here.seen).doomed


def test_a_step_at_which_one_after_the_other_hangs_fails_the_job_with_the_stack():
    here = at_step(5, nodes=8)
    for seconds in (25.0, 45.0):
        hangs(here, 0, "waiting")
        hangs(here, 1, "computing", seconds=seconds)
        assert given_up(here.look())
        here.run(JobState.TRAINING)
    hangs(here, 0, "waiting")
    hangs(here, 1, "computing", seconds=85.0)
    here.look()
    assert here.seen.state is JobState.FAILED
    assert "3 processes, one after the other, have hung at step 5" in here.seen.why
    assert "train.py" in here.seen.why


def test_more_patience_is_shown_at_a_step_where_one_has_hung():
    here = at_step(5, nodes=8)
    hangs(here, 0, "waiting")
    hangs(here, 1, "computing")
    here.look()
    here.run(JobState.TRAINING)
    hangs(here, 0, "waiting")
    hangs(here, 1, "computing", seconds=39.0)
    assert not given_up(here.look())
    hangs(here, 1, "computing", seconds=41.0)
    assert given_up(here.look())


def test_ranks_that_all_wait_for_each_other_try_once_more_and_then_have_failed():
    here = at_step(5)
    members = here.seen.generation.members
    for rank in range(3):
        hangs(here, rank, "waiting")
    published = [action for action in here.step() if isinstance(action, Publish)]
    assert [action.members for action in published] == [members]
    assert published[0].why.startswith(MISMATCH_CAUSE)
    here.run(JobState.TRAINING)
    newest = replace(here.seen.generation, cause=published[0].why)
    here.change_seen(generations=(*here.seen.generations[:-1], newest))
    for rank in range(3):
        hangs(here, rank, "waiting")
    here.look()
    assert here.seen.state is JobState.FAILED
    assert "rank 2:" in here.seen.why


@settings(max_examples=100, deadline=None)
@given(
    told=st.lists(
        st.tuples(st.sampled_from(["computing", "waiting"]), st.integers(3, 6), st.floats(21.0, 599.0)), min_size=3, max_size=3
    ),
    step=st.integers(3, 7),
)
def test_whoever_waits_is_never_given_up_and_somebody_always_stays(told, step):
    here = at_step(step)
    for rank, (how, at, seconds) in enumerate(told):
        hangs(here, rank, how, step=at, seconds=seconds)
    doomed = hanging(here.seen).doomed
    assert all(here.process(process).hang.how != "waiting" for process in doomed)
    assert len(doomed) < 3
