"""Nodes of a group's spare pool: for what was lost, and for nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models.job.elastic import ElasticPolicy
from models.job.states import JobState
from tests.workers.plans.job_world import nodes_of, settle, training, world
from workers.plans.job_seen import Elasticity, Say, Start


def pool(here, *nodes: str) -> None:
    for node in nodes:
        here.change_node(node, is_spare=True)


def started_on(actions) -> set[str]:
    return {node for action in actions if isinstance(action, Start) for node, _ in action.places}


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_queued_job_is_not_placed_on_them_and_says_that_they_are_there(is_plain):
    here = world(nodes=3, replicas=3, spares=0, is_plain=is_plain)
    pool(here, "n2")
    actions = here.step()
    assert [action.why for action in actions if isinstance(action, Say)] == [
        "Waits for 3 free nodes; 2 are ready and free; 1 more are kept as spares."
    ]
    assert not started_on(actions)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(("nodes", "takes_over"), [(3, "n2"), (4, "n3")], ids=["no other is free", "another is free"])
def test_a_lost_node_is_made_up_for_there_only_when_no_other_is_free(nodes, takes_over, is_plain):
    here = training(nodes=nodes, replicas=2, spares=0, is_plain=is_plain)
    pool(here, "n2")
    settle(here)
    assert set(nodes_of(here)) == {"n0", "n1"}
    here.release("n1")
    here.run(JobState.TRAINING)
    settle(here)
    assert set(nodes_of(here)) == {"n0", takes_over}


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_jobs_own_spares_are_not_started_there(is_plain):
    here = world(nodes=3, replicas=2, spares=1, is_plain=is_plain)
    pool(here, "n2")
    here.run(JobState.TRAINING)
    settle(here)
    assert {process.node for process in here.seen.alive} == {"n0", "n1"}


def test_a_node_that_is_to_be_left_is_relieved_there():
    here = training(nodes=3, replicas=2, spares=0)
    pool(here, "n2")
    here.change_node("n1", leave_why="Its provider takes the host back.", leave_by=here.now + timedelta(seconds=120))
    settle(here, 20)
    assert set(nodes_of(here)) == {"n0", "n2"}


def test_an_elastic_job_does_not_grow_onto_them():
    policy = ElasticPolicy((1, 2, 3), faulty=timedelta(seconds=10), scaling=timedelta(seconds=5))
    here = world(nodes=3, replicas=2, spares=0, elastic=Elasticity(policy, 3))
    pool(here, "n2")
    here.run(JobState.TRAINING)
    pool(here, "n2")
    here.change_node("n2", free_since=here.now - timedelta(hours=1))
    here.taken.clear()
    settle(here, 120)
    assert not started_on(here.taken)
    here.change_node("n2", is_spare=False)
    settle(here, 120)
    assert started_on(here.taken) == {"n2"}
