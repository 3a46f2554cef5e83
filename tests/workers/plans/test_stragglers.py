"""Ranks that hold the others up: replaced where a spare stands ready anyway, seldom, and never for ever."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.job.elastic import ElasticPolicy
from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import World, nodes_of, published, settle, training
from workers.plans import placement
from workers.plans.evidence import faults
from workers.plans.job import plan
from workers.plans.job_seen import Elasticity, GiveUp, Publish, Start
from workers.plans.stragglers import CAUSE

PERIOD = training().seen.patience.straggler


def replacing(**more) -> World:
    return training(replaces_stragglers=True, **more)


def test_a_ready_spare_takes_the_slow_rank_and_the_cause_says_which_how_slow_and_who():
    here = replacing()
    spare = here.seen.alive[-1]
    straggler = here.lag(1)
    (handed_over,) = published(here.step())
    assert handed_over.members[1] == spare.id
    assert handed_over.why == (
        "A rank holds the others up: rank 1 needs 400 ms for its part of a step, they need 100 ms. "
        f"{spare.id} on node n3 takes over from {straggler.id} on node n1."
    )
    assert here.look() == ()
    assert here.process(straggler.id).is_alive, "its state may still be needed"
    here.run(JobState.TRAINING)
    here.look()
    assert [action for action in here.taken if isinstance(action, GiveUp)] == [
        GiveUp(straggler.id, "it held the others up when it last had a rank", is_planned=True)
    ]


def test_a_job_that_has_slow_ranks_told_and_no_more_leaves_them_where_they_are():
    here = training()
    here.lag(1)
    assert here.look() == ()
    assert placement.shunned(here.seen) == frozenset()


def test_nothing_is_started_for_a_slow_rank():
    here = replacing(nodes=3, spares=0)
    here.add_node("n9")
    here.lag(1)
    settle(here)
    assert (len(here.seen.generations), here.count(Start)) == (1, 0)


def test_a_spare_that_warms_up_is_waited_for_and_takes_over_when_it_is_ready():
    here = replacing()
    spare = here.seen.alive[-1]
    here.change(spare.id, state=ProcessState.STARTED)
    here.lag(1)
    assert here.look() == ()
    here.change(spare.id, state=ProcessState.READY)
    assert len(published(here.step())) == 1


def test_a_rank_that_has_caught_up_or_was_slow_in_an_earlier_generation_stays():
    here = replacing()
    straggler = here.lag(1)
    here.kill_rank(0)
    here.look()
    here.run(JobState.TRAINING)
    assert here.rank(1) == here.process(straggler.id)
    settle(here)
    assert len(here.seen.generations) == 2
    here.lag(1)
    here.change(straggler.id, lag=None)
    settle(here)
    assert len(here.seen.generations) == 2


def test_a_spare_on_the_same_node_is_as_slow_and_takes_nothing_over():
    here = replacing()
    here.change(here.seen.alive[-1].id, node=here.rank(1).node, local_rank=1)
    here.lag(1)
    assert published(here.step()) == []


def test_a_node_that_an_elastic_job_grows_onto_is_no_spare():
    policy = ElasticPolicy((2, 4), scaling=timedelta(0))
    here = replacing(nodes=2, replicas=2, spares=0, elastic=Elasticity(policy, wish=4))
    for name in ("n8", "n9"):
        here.add_node(name)
    here.now += timedelta(minutes=1)
    here.look()
    first, _ = (process for process in here.seen.alive if process.id not in here.seen.generation.members)
    here.change(first.id, state=ProcessState.READY)
    here.lag(0)
    assert published(here.look()) == []
    settle(here)
    assert nodes_of(here) == ["n0", "n1", "n8", "n9"]


def test_an_elastic_job_that_is_to_be_smaller_shrinks_first():
    here = replacing(spares=1, elastic=Elasticity(ElasticPolicy((2, 3)), wish=3))
    here.lag(0)
    here.change_elastic(wish=2)
    (smaller,) = published(here.step())
    assert len(smaller.members) == 2


def test_of_a_node_with_several_ranks_the_slow_one_moves_alone():
    here = replacing(nodes=3, replicas=2, processes_per_node=2)
    here.lag(2)
    here.look()
    here.run(JobState.TRAINING)
    assert nodes_of(here) == ["n0", "n0", "n2", "n1"]
    assert here.rank(2).local_rank == 0


def test_the_slowest_of_several_goes_first_and_the_next_one_after_the_period():
    here = replacing(nodes=6, spares=3)
    here.lag(0, 0.2)
    here.lag(2, 0.9)
    here.look()
    settle(here)
    assert nodes_of(here) == ["n0", "n1", "n3"]
    here.lag(0, 0.2)
    decision = plan(here.seen, here.now)
    assert published(decision.actions) == []
    assert decision.again_in == here.seen.straggler_replaced_at + PERIOD - here.now
    here.now += decision.again_in
    settle(here)
    assert nodes_of(here) == ["n4", "n1", "n3"]


def test_a_node_that_is_to_be_left_by_a_time_comes_before_a_slow_rank():
    here = replacing(nodes=5)
    here.lag(1)
    here.change_node("n0", leave_by=here.now + timedelta(seconds=120), leave_why="taken back", is_held=True)
    (handed_over,) = published(here.step())
    assert [here.process(one).node for one in handed_over.members] == ["n3", "n1", "n2"]


def test_a_spare_on_a_node_that_had_better_be_left_takes_no_slow_rank_over():
    here = replacing()
    here.change_node("n3", leave_why="its accelerator is worn", is_held=True)
    here.lag(1)
    assert published(here.look()) == []


def test_a_slow_node_is_shunned_as_long_as_another_one_is_free():
    here = replacing(nodes=5)
    here.lag(1)
    here.look()
    settle(here)
    assert [process.node for process in here.seen.alive if process.id not in here.seen.generation.members] == ["n4"]
    assert placement.shunned(here.seen) == frozenset(), "it is the last one there is to go to"
    here.add_node("n9")
    assert placement.shunned(here.seen) == {"n1"}


def test_a_spare_on_a_slow_node_takes_a_dead_rank_over_and_no_slow_one():
    here = replacing()
    here.lag(1)
    here.look()
    settle(here)
    here.now += PERIOD
    assert [process.node for process in here.seen.alive if process.id not in here.seen.generation.members] == ["n1"]
    here.lag(2)
    settle(here)
    assert nodes_of(here) == ["n0", "n3", "n2"]
    here.kill_rank(0)
    here.run(JobState.RECOVERING)
    here.run(JobState.TRAINING)
    assert nodes_of(here) == ["n1", "n3", "n2"]


def test_of_two_spares_the_one_on_a_slow_node_takes_a_dead_rank_last():
    here = replacing(spares=1)
    here.lag(1)
    here.look()
    settle(here)
    here.add_node("n9")
    here.change_seen(spares=2)
    settle(here)
    here.kill_rank(0)
    here.look()
    assert nodes_of(here)[0] == "n9"


def test_a_rank_that_is_slow_wherever_it_runs_is_moved_twice_and_no_node_is_blamed():
    here = replacing(nodes=8, spares=3)
    for _ in range(5):
        here.lag(0)
        settle(here)
        here.now += PERIOD
    assert here.count(Publish) == 2
    assert placement.shunned(here.seen) == frozenset()


def test_a_replaced_rank_counts_as_no_restart_and_no_fault():
    here = replacing()
    here.lag(1)
    settle(here)
    assert (here.seen.restarts, faults(here.seen)) == (0, [])
    assert all(action.is_planned for action in here.taken if isinstance(action, GiveUp))


def test_the_slow_process_is_no_spare_for_the_one_that_was_to_take_over():
    here = replacing()
    straggler = here.lag(1)
    here.step()
    here.kill_rank(1)
    here.run(JobState.TRAINING)
    assert nodes_of(here) == ["n0", "n3", "n2"]
    settle(here)
    assert not here.process(straggler.id).is_alive


def test_the_slow_process_is_called_back_when_all_who_go_on_die_before_they_hold_the_state():
    here = replacing(nodes=3, replicas=2)
    straggler = here.lag(0)
    here.step()
    here.kill_rank(1)
    here.look()
    assert straggler.id in here.seen.generation.members


def test_a_lone_member_and_a_job_that_ends_or_is_broken_keep_their_slow_rank():
    alone = replacing(nodes=2, replicas=1)
    alone.lag(0)
    ending = replacing()
    ending.lag(1)
    ending.change(ending.rank(0).id, state=ProcessState.FINISHED)
    broken = replacing()
    broken.lag(1)
    broken.complain(0)
    for here in (alone, ending, broken):
        assert published(here.step()) == []


@pytest.mark.timeout(60)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whoever_lags_a_ready_spare_elsewhere_takes_over_a_holder_stays_and_the_period_is_kept(data):
    here = replacing(nodes=7, replicas=3, spares=2)
    replaced = []
    for _ in range(data.draw(st.integers(1, 16))):
        match data.draw(st.sampled_from(("lag", "lag", "notice", "recommend", "kill", "work", "work", "time"))):
            case "lag":
                rank = data.draw(st.integers(0, 2))
                if here.rank(rank).reformed == here.seen.generation.number:
                    here.lag(rank)
            case "notice":
                node = data.draw(st.sampled_from(sorted(here.seen.nodes)))
                here.change_node(node, leave_by=here.now + timedelta(seconds=120), leave_why="taken back", is_held=True)
            case "recommend":
                node = data.draw(st.sampled_from(sorted(here.seen.nodes)))
                here.change_node(node, leave_by=None, leave_why="worn", is_held=True)
            case "kill":
                holders = [one for one in here.seen.alive if one.id in here.seen.generation.members and one.reformed]
                if len(holders) > 2:
                    here.exit(holders[0].id, signal=9)
            case "work":
                here.work()
            case "time":
                here.now += timedelta(seconds=data.draw(st.sampled_from((0.5, 5, 300))))
        replaced += _check(here)
    assert here.seen.state is not JobState.FAILED
    assert all(later - earlier >= PERIOD for earlier, later in pairwise(replaced))


def _check(here: World) -> list:
    """When slow ranks have been replaced at this look."""
    replaced = []
    for _ in range(20):
        before = here.seen
        actions = here.step()
        for action in published(actions):
            assert any(here.process(one).reformed for one in action.members)
            if action.why.startswith(CAUSE):
                _check_replacement(before, action)
                replaced.append(here.now)
        if here.seen == before:
            return replaced
    raise AssertionError("no fixed point")


def _check_replacement(before, action) -> None:
    ((old, new),) = [pair for pair in zip(before.generation.members, action.members, strict=True) if pair[0] != pair[1]]
    successor, straggler = before.by_id[new], before.by_id[old]
    assert before.generation.is_formed
    assert straggler.lag is not None
    assert successor.state is ProcessState.READY
    assert successor.node != straggler.node
    assert before.nodes[successor.node].leave_why is None
    assert not any(before.nodes[before.by_id[one].node].must_be_left for one in before.generation.members)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.integers(0, 3))
def test_a_job_whose_every_rank_is_always_slow_comes_to_rest(replicas, spares, free):
    here = replacing(nodes=replicas + spares + free, replicas=replicas, spares=spares)
    counts = []
    for _ in range(2 * replicas + 3):
        for rank in range(replicas):
            here.lag(rank)
        settle(here)
        here.now += PERIOD
        counts.append(here.count(Publish))
    assert counts[-1] <= 2 * replicas
    assert counts[-1] == counts[-3]
