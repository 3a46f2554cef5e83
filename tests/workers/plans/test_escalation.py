"""Who is to blame for processes that fail one after the other: a node, the script, or nobody."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import World, training, world
from workers.plans.job_seen import HangSeen
from workers.plans.placement import shunned


def fall(here: World, rank: int, **how) -> None:
    """A rank falls, and the job has as much time as it needs to train again."""
    here.exit(here.rank(rank).id, **how)
    here.run(JobState.TRAINING)
    here.now += timedelta(minutes=2)


def kill_on(here: World, node: str) -> None:
    rank = next(rank for rank, process in enumerate(here.seen.generation.members) if here.process(process).node == node)
    fall(here, rank, signal=9)


def test_a_node_on_which_one_process_after_the_other_falls_is_left_when_there_is_another():
    here = training(nodes=3, spares=0)
    for _ in range(3):
        kill_on(here, "n1")
    assert shunned(here.seen) == frozenset()
    here.add_node("n9")
    assert shunned(here.seen) == {"n1"}
    here.exit(here.rank(1).id, signal=9)
    here.run(JobState.TRAINING)
    assert {here.process(member).node for member in here.seen.generation.members} == {"n0", "n2", "n9"}


def test_processes_that_hang_on_one_node_speak_against_it_as_well():
    here = training(nodes=5, spares=0)
    (first,) = [process for process in here.seen.alive if process.node == "n1"]
    hung = replace(first, state=ProcessState.LOST, hang=HangSeen(1, 5, "frozen", 30.0, 20.0))
    before = tuple(replace(hung, id=f"{first.id}-{number}") for number in range(3))
    here.change_seen(processes=(*before, *here.seen.processes))
    assert shunned(here.seen) == {"n1"}


def test_what_falls_on_every_node_is_no_nodes_fault():
    here = training(nodes=5, spares=0)
    for _ in range(3):
        for node in ("n0", "n1", "n2"):
            kill_on(here, node)
    assert shunned(here.seen) == frozenset()


def test_user_code_that_fails_in_different_ranks_ends_the_job_with_the_traceback():
    here = training(nodes=6, spares=1, max_restarts=2)
    for rank in (0, 2):
        fall(here, rank, code=1, failure=f"Traceback\nValueError: rank {rank} has a bad sample")
    here.exit(here.rank(1).id, code=1, failure="Traceback\nValueError: rank 1 has a bad sample")
    here.look()
    assert here.seen.state is JobState.FAILED
    assert "has a bad sample" in here.seen.why


def test_a_rank_that_fails_wherever_it_runs_is_the_scripts_fault_and_no_node_is_shunned():
    here = training(nodes=8, spares=3, max_restarts=3)
    nodes = set()
    for _ in range(3):
        nodes.add(here.rank(1).node)
        fall(here, 1, code=1, failure="Traceback\nZeroDivisionError: division by zero")
    here.exit(here.rank(1).id, code=1, failure="Traceback\nZeroDivisionError: division by zero")
    here.look()
    assert len(nodes) > 1
    assert here.seen.state is JobState.FAILED
    assert "ZeroDivisionError" in here.seen.why
    assert shunned(here.seen) == frozenset()


def test_a_kill_from_outside_costs_none_of_the_restarts():
    here = training(nodes=4, max_restarts=0)
    fall(here, 1, signal=9)
    assert here.seen.state is JobState.TRAINING
    assert here.seen.restarts == 0


def test_a_loss_policy_that_stops_fails_the_job_at_once_whatever_restarts_are_left():
    here = training(nodes=6, max_restarts=10)
    here.exit(here.rank(0).id, code=1, failure="Traceback\neverstep.errors.LossStopped: The loss of step 5 is nan: training stops.")
    here.look()
    assert here.seen.state is JobState.FAILED
    assert "The loss of step 5 is nan" in here.seen.why


def test_a_spare_is_taken_before_a_new_process_and_that_before_nothing():
    here = training(nodes=4, spares=1)
    spare = next(process for process in here.seen.alive if process.id not in here.seen.generation.members)
    here.kill_rank(1)
    here.run(JobState.TRAINING)
    assert here.rank(1).id == spare.id
    here.kill_rank(1)
    here.run(JobState.TRAINING)
    assert here.seen.state is JobState.TRAINING


def test_a_job_whose_script_never_comes_up_is_not_started_for_ever():
    here = world(nodes=4, max_restarts=3)
    here.step()
    for _ in range(8):
        here.work()
        for process in list(here.seen.alive):
            here.exit(process.id, code=1, failure="Traceback\nImportError: no torch")
        here.now += timedelta(minutes=1)
        here.look()
    assert here.seen.state is JobState.FAILED
