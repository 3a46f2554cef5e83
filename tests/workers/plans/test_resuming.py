"""When everybody who held the state is gone: jobs go on from a checkpoint, or say why not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from models.job.states import JobState
from tests.workers.plans.job_world import START, training
from workers.plans.job import plan
from workers.plans.job_seen import CheckpointSeen, Publish

IN_MEMORY = CheckpointSeen(step=400, nodes=2)
DURABLE = CheckpointSeen(step=400, durable_at=START + timedelta(minutes=1))


def saved(found: CheckpointSeen | None = DURABLE, *, step: int = 437, **more):
    here = training(**more)
    here.seen = replace(here.seen, has_namespace=True, checkpoint=found, step=step)
    return here


def kill_all(here) -> None:
    for rank in range(here.seen.world_size):
        here.kill_rank(rank)


def fail_all(here, text: str) -> None:
    for rank in range(here.seen.world_size):
        here.fail_rank(rank, text)


def test_a_job_whose_holders_are_all_gone_goes_on_from_its_newest_checkpoint_and_says_which():
    here = saved(nodes=6, replicas=2, spares=2)
    before = set(here.seen.generation.members)
    kill_all(here)
    (published,) = [action for action in here.step() if isinstance(action, Publish)]
    assert published.why == (
        "All holders of the state are gone: goes on from step 400, durable since 2031-05-01 00:01:00 UTC; 37 steps are done again."
    )
    assert not before & set(published.members)
    here.run(JobState.TRAINING)


def test_a_checkpoint_in_memory_is_told_with_the_nodes_that_hold_it():
    here = saved(IN_MEMORY, step=401, nodes=6, replicas=2, spares=2)
    kill_all(here)
    (published,) = [action for action in here.step() if isinstance(action, Publish)]
    assert "from step 400, in the memory of 2 nodes; 1 step is done again." in published.why


def test_without_spares_new_processes_are_started_and_the_job_says_from_where_it_will_go_on():
    here = saved(nodes=2, replicas=2, spares=0)
    kill_all(here)
    here.look()
    assert here.seen.state is JobState.RECOVERING
    assert "goes on from step 400" in here.seen.why
    assert "Waits for new processes" in here.seen.why
    here.run(JobState.TRAINING)
    assert len(here.seen.generations) == 2


def test_one_survivor_is_worth_more_than_any_checkpoint():
    here = saved(nodes=6, replicas=2, spares=2)
    here.kill_rank(0)
    (published,) = [action for action in here.step() if isinstance(action, Publish)]
    assert "spares take over" in published.why


def test_a_save_that_is_told_just_after_its_processes_have_died_is_waited_for():
    here = saved(None, nodes=6, replicas=2)
    kill_all(here)
    decision = plan(here.seen, here.now)
    assert decision.actions == ()
    assert decision.again_in == here.seen.patience.told
    here.now += timedelta(seconds=1)
    here.seen = replace(here.seen, checkpoint=IN_MEMORY)
    here.run(JobState.TRAINING)


def test_without_any_complete_checkpoint_the_job_fails_and_says_that_there_is_none():
    here = saved(None, nodes=6, replicas=2)
    kill_all(here)
    here.now += here.seen.patience.told
    here.step()
    assert here.seen.state is JobState.FAILED
    assert "no tier has a complete checkpoint" in here.seen.why


def test_user_code_is_tried_again_from_a_checkpoint_only_as_often_as_allowed():
    here = saved(nodes=6, replicas=2, spares=2, max_restarts=1)
    fail_all(here, "Traceback\nOSError: flaky disk")
    here.run(JobState.TRAINING)
    here.fail_rank(0, "Traceback\nOSError: another thing")
    here.look()
    assert here.seen.state is JobState.FAILED
    assert "OSError: another thing" in here.seen.why


def test_a_checkpoint_after_which_training_fails_alike_again_and_again_stops_the_job_with_a_diagnosis():
    here = saved(nodes=6, replicas=2, spares=2, max_restarts=1000)
    fail_all(here, "Traceback\nOSError: a passing fault")
    here.run(JobState.TRAINING)
    for number in range(3):
        assert here.seen.state is JobState.TRAINING
        fail_all(here, f"Traceback\nFloatingPointError: loss is nan in step {403 + number}")
        if number < 2:
            here.run(JobState.TRAINING)
    here.look()
    assert here.seen.state is JobState.FAILED
    assert "loss is nan" in here.seen.why
    assert "3 times in a row" in here.seen.why
    assert "everstep checkpoint delete" in here.seen.why


def test_different_faults_and_kills_from_outside_are_no_sign_of_a_bad_checkpoint():
    here = saved(nodes=6, replicas=2, spares=2, max_restarts=1000)
    for number in range(8):
        if number % 3 == 2:
            kill_all(here)
        else:
            fail_all(here, "Traceback\n" + ("ValueError: one" if number % 2 else "OSError: other"))
        here.run(JobState.TRAINING)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 2), min_size=1), st.integers(0, 3)), min_size=1, max_size=8), st.integers(1, 2))
def test_a_job_with_a_complete_checkpoint_recovers_from_the_death_of_anybody_at_any_time(deaths, per_node):
    here = saved(nodes=5, replicas=3, spares=1, processes_per_node=per_node)
    for ranks, rounds in deaths:
        for rank in ranks:
            if here.rank(rank).is_alive:
                here.kill_rank(rank)
        for _ in range(rounds):
            here.look()
            here.work()
            here.now += timedelta(seconds=0.5)
    here.run(JobState.TRAINING, rounds=600)
    assert all(here.process(process).is_alive for process in here.seen.generation.members)
