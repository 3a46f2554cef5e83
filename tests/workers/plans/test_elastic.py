"""How many nodes an elastic job has: sizes, growth, shrinking, commands, and what it gives to others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.protocol import Member
from everstep.resilience.shard_replicas import buddy_of
from models.job.elastic import ElasticPolicy, sizes_of
from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import START, World, training, world
from workers.plans import elastic as plans
from workers.plans.elastic import Capacity, choose
from workers.plans.job_seen import CheckpointSeen, Elasticity, GiveUp, Move, Patience, Publish, SizeChange, Start

SECOND = timedelta(seconds=1)


def elasticity(
    least: int = 1, most: int = 4, *, wish: int | None = None, sizes: tuple[int, ...] = (), **times: float
) -> Elasticity:
    allowed = sizes_of(least, most, None, sizes)
    spans = {name: timedelta(seconds=value) for name, value in times.items()}
    return Elasticity(ElasticPolicy(allowed, **spans), wish or allowed[-1])


def started(*, nodes: int = 4, **more) -> World:
    """An elastic job that trains, without spares unless asked."""
    return training(**({"nodes": nodes, "replicas": 4, "spares": 0, "elastic": elasticity()} | more))


def size(here: World) -> int:
    return len(here.seen.generation.members) // here.seen.processes_per_node


def wait(here: World, seconds: float, *, each: float = 1.0) -> None:
    """Plan and agents work while time passes."""
    for _ in range(int(seconds / each)):
        here.look()
        here.work()
        here.now += timedelta(seconds=each)
    here.look()


def free_node(here: World, name: str) -> None:
    here.add_node(name)
    here.change_node(name, free_since=here.now)


def ask(here: World, wish: int) -> None:
    here.now += SECOND
    here.change_elastic(wish=wish, wished_at=here.now)


def change_generation(here: World, **changes) -> None:
    here.seen = replace(here.seen, generations=(*here.seen.generations[:-1], replace(here.seen.generation, **changes)))


# ------------------------------------------------------------------ where it begins


def test_a_job_starts_on_the_largest_size_that_fits_the_free_nodes():
    here = started(nodes=5, elastic=elasticity(sizes=(2, 4, 8)))
    assert size(here) == 4


def test_a_job_below_its_least_size_is_queued_and_holds_nothing():
    here = world(nodes=1, replicas=4, spares=0, elastic=elasticity(least=2))
    wait(here, 60)
    assert (here.seen.state, here.seen.processes) == (JobState.QUEUED, ())
    assert "Waits for 2 free nodes" in here.seen.why
    here.add_node("late")
    here.run(JobState.TRAINING)
    assert size(here) == 2


def test_a_job_that_loses_a_node_while_it_forms_does_with_fewer():
    here = world(nodes=4, replicas=4, spares=0, elastic=elasticity())
    here.look()
    here.release("n3")
    here.run(JobState.TRAINING)
    assert size(here) == 3
    assert here.now - START >= timedelta(seconds=30)


# ------------------------------------------------------------------ growth


def test_a_job_grows_when_nodes_have_been_free_for_the_settle_time_and_not_before():
    here = started(nodes=2)
    wait(here, 30)
    free_node(here, "a")
    free_node(here, "b")
    wait(here, 59)
    assert (size(here), here.count(Start)) == (2, 0)
    wait(here, 5)
    assert size(here) == 4
    assert here.seen.state is JobState.TRAINING


def test_training_goes_on_until_the_newcomers_are_ready():
    here = started(nodes=2, elastic=elasticity(scaling=0.0))
    before = here.seen.generation.members
    wait(here, 30)
    free_node(here, "a")
    here.step()
    assert here.seen.state is JobState.TRAINING
    assert here.seen.generation.members == before
    here.work()
    assert not here.count(Publish)
    here.work()
    actions = here.step()
    assert [action.new for action in actions if isinstance(action, Move)] == [JobState.RESIZING]
    assert here.seen.generation.members[:2] == before, "survivors keep their ranks"


def test_no_node_is_taken_that_reaches_no_allowed_size():
    here = started(nodes=2, elastic=elasticity(sizes=(2, 4), scaling=0.0))
    free_node(here, "a")
    wait(here, 120)
    assert (size(here), len(here.seen.alive)) == (2, 2)
    free_node(here, "b")
    wait(here, 10)
    assert size(here) == 4


def test_a_newcomer_that_takes_too_long_is_not_waited_for():
    here = started(nodes=1, elastic=elasticity(scaling=0.0))
    wait(here, 20)
    for name in "ab":
        free_node(here, name)
    here.step()
    slow = here.seen.alive[-1]
    here.work()
    for process in here.seen.alive:
        if process.id != slow.id:
            here.change(process.id, state=ProcessState.READY)
    here.look()
    assert size(here) == 1
    here.now += timedelta(seconds=61)
    here.look()
    assert size(here) == 2


def test_a_spare_is_found_before_the_job_grows():
    here = started(nodes=2, spares=1, replicas=4, elastic=elasticity(scaling=0.0))
    wait(here, 60)
    free_node(here, "a")
    wait(here, 60)
    assert size(here) == 2
    assert [one.node for one in here.seen.alive if one.id not in here.seen.generation.members] == ["a"]
    free_node(here, "b")
    wait(here, 60)
    assert size(here) == 3


def test_growth_that_fails_is_snoozed():
    here = started(nodes=1, elastic=elasticity(scaling=0.0, snooze=100.0))
    wait(here, 20)
    free_node(here, "a")
    here.look()
    here.exit(here.seen.alive[-1].id, signal=9)
    tried = here.count(Start)
    wait(here, 99)
    assert here.count(Start) == tried
    wait(here, 5)
    assert size(here) == 2


def test_a_newcomer_that_dies_before_it_has_joined_costs_no_wait():
    here = started(nodes=1, elastic=elasticity(scaling=0.0, faulty=600.0))
    wait(here, 20)
    free_node(here, "a")
    here.step()
    here.work()
    here.work()
    here.look()
    assert size(here) == 2
    here.kill_rank(1)
    here.look()
    assert size(here) == 1


def test_a_member_that_follows_a_change_of_size_late_has_its_graceful_time():
    here = started(elastic=elasticity(graceful=100.0))
    slow = here.rank(1).id
    here.deaf.add(slow)
    ask(here, 2)
    wait(here, 95)
    assert slow in here.seen.generation.members
    wait(here, 70)
    assert not here.process(slow).is_alive
    here.run(JobState.TRAINING)


# ------------------------------------------------------------------ commands, and what others need


@pytest.mark.parametrize("count", range(2, 10))
@pytest.mark.parametrize("per_node", [1, 2])
def test_a_rank_and_the_one_that_keeps_its_shard_never_leave_together(count: int, per_node: int):
    here = started(nodes=count, replicas=count, processes_per_node=per_node, elastic=elasticity(most=count))
    ask(here, 1)
    sizes = [size(here)]
    while sizes[-1] > 1:
        change_generation(here, has_buddies=True)
        before = here.seen.generation
        here.look()
        assert here.seen.generation is before, "not every replica is whole yet"
        change_generation(here, reached=(before.step or 0) + 1)
        members = [Member(rank, name, here.process(name).node, "") for rank, name in enumerate(before.members)]
        here.look()
        left = set(before.members) - set(here.seen.generation.members)
        for rank, name in enumerate(before.members):
            assert name not in left or before.members[buddy_of(rank, members)] not in left
        here.run(JobState.TRAINING)
        sizes.append(size(here))
    assert len(sizes) <= count.bit_length() + 1, sizes


def test_sizes_that_leave_no_other_way_are_shrunk_to_at_once():
    here = started(elastic=elasticity(sizes=(1, 4)))
    change_generation(here, has_buddies=True, reached=7)
    ask(here, 1)
    wait(here, 2)
    assert size(here) == 1


def test_a_command_to_shrink_is_followed_at_once_and_the_nodes_are_given_back():
    here = started()
    before = here.seen.generation.members
    ask(here, 2)
    here.look()
    assert here.seen.state is JobState.RESIZING
    assert here.seen.generation.members == before[:2]
    assert not here.count(GiveUp), "nobody leaves before the others have changed over"
    wait(here, 2)
    assert {process.id for process in here.seen.alive} == set(before[:2])
    assert all(action.is_planned for action in here.taken if isinstance(action, GiveUp))


def test_a_command_to_grow_waits_neither_for_the_settle_time_nor_for_the_stable_period():
    here = started(elastic=elasticity(scaling=600.0))
    ask(here, 2)
    wait(here, 3)
    ask(here, 4)
    wait(here, 4)
    assert size(here) == 4


def test_a_size_that_is_asked_for_stays_though_nodes_are_free():
    here = started(elastic=elasticity(scaling=0.0))
    ask(here, 3)
    wait(here, 4000, each=20)
    assert size(here) == 3


def test_only_as_many_nodes_as_others_need_are_given_and_taken_back_later():
    here = started(elastic=elasticity(least=2, scaling=0.0))
    here.change_elastic(ceiling=3, ceiling_why="job big needs a node")
    wait(here, 5)
    assert size(here) == 3
    assert ["job big needs a node" in action.why for action in here.taken if isinstance(action, Publish)] == [True]
    here.change_elastic(ceiling=1)
    wait(here, 5)
    assert size(here) == 2, "never below the least"
    here.change_elastic(ceiling=None)
    wait(here, 60)
    assert size(here) == 4


# ------------------------------------------------------------------ losses


def test_lost_nodes_are_waited_for_until_the_faulty_timeout_and_then_done_without():
    here = started()
    here.release("n1")
    before = here.seen.generation.members
    wait(here, 29)
    assert (size(here), here.seen.state, here.seen.awaits) == (4, JobState.RECOVERING, 1)
    wait(here, 3)
    assert here.seen.generation.members == (before[0], *before[2:])
    assert here.seen.state is JobState.TRAINING
    free_node(here, "back")
    wait(here, 59)
    assert size(here) == 3
    wait(here, 10)
    assert size(here) == 4


def test_a_node_that_comes_in_time_takes_the_lost_ranks_and_the_size_stays():
    here = started()
    here.release("n1")
    wait(here, 20)
    here.add_node("new")
    wait(here, 15)
    assert size(here) == 4
    assert {len(generation.members) for generation in here.seen.generations} == {4}


def test_below_the_least_size_the_job_waits_and_does_not_train():
    here = started(nodes=2, replicas=2, elastic=elasticity(least=2))
    here.release("n1")
    wait(here, 300)
    assert here.seen.state is JobState.RECOVERING
    assert size(here) == 2
    here.add_node("new")
    here.run(JobState.TRAINING)


def test_when_fewer_are_wanted_anyway_a_loss_is_not_waited_for():
    here = started()
    here.change_elastic(ceiling=2, ceiling_why="others need them")
    here.kill_rank(3)
    here.look()
    assert size(here) == 2


def test_nobody_waits_for_a_replacement_of_nodes_that_are_about_to_go():
    here = started()
    here.change_node("n2", leave_by=here.now + timedelta(seconds=60), leave_why="spot interruption")
    wait(here, 49)
    assert size(here) == 4, "it trains on while it may"
    wait(here, 3)
    assert size(here) == 3
    assert "n2" not in {here.process(one).node for one in here.seen.generation.members}
    assert here.seen.state is JobState.TRAINING


def test_when_all_holders_are_gone_a_job_goes_on_from_its_checkpoint_on_what_is_left():
    here = started(nodes=6, spares=0)
    here.change_seen(checkpoint=CheckpointSeen(7, nodes=2), has_namespace=True)
    for rank in range(4):
        here.release(here.rank(rank).node)
    here.run(JobState.TRAINING)
    assert size(here) == 2


# ------------------------------------------------------------------ places that belong to a gang


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_rigid_gang_gives_all_back_after_a_while_if_another_job_waits_and_it_can_start_again(has_checkpoint: bool):
    here = training(nodes=3, replicas=3, spares=0, is_queue_behind=True, has_namespace=True)
    here.change_seen(checkpoint=CheckpointSeen(7, nodes=2) if has_checkpoint else None)
    here.release("n1")
    wait(here, 590, each=10)
    assert here.seen.state is JobState.RECOVERING
    wait(here, 30, each=1)
    assert here.seen.state is (JobState.QUEUED if has_checkpoint else JobState.RECOVERING)
    assert bool(here.seen.alive) is not has_checkpoint
    here.add_node("new")
    here.run(JobState.TRAINING)


def test_a_gang_that_nobody_waits_behind_keeps_what_it_has():
    here = training(nodes=3, replicas=3, spares=0, has_namespace=True, checkpoint=CheckpointSeen(7, nodes=2))
    here.release("n1")
    wait(here, 3000, each=10)
    assert (here.seen.state, len(here.seen.alive)) == (JobState.RECOVERING, 2)


# ------------------------------------------------------------------ whatever happens


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(0, 4),
    st.lists(st.integers(0, 200), max_size=6),
    st.lists(st.integers(0, 4000), max_size=6),
    st.data(),
)
def test_no_size_is_chosen_that_is_not_allowed_and_none_grows_in_the_stable_period(sizes, wish, ceiling, at_hand, free, ages, data):
    policy = ElasticPolicy(tuple(sorted(set(sizes))))
    changes = tuple(SizeChange(START - timedelta(seconds=age), 1, 2) for age in sorted(ages, reverse=True))
    elastic = Elasticity(policy, wish, ceiling=ceiling, changes=changes)
    now_have = data.draw(st.sampled_from(policy.sizes))
    capacity = Capacity(at_hand, tuple(START - timedelta(seconds=age) for age in free))
    right = choose(elastic, now_have, capacity, Patience(), START)
    assert right.to in policy.sizes
    assert right.to <= max(plans.aim(elastic), now_have)
    if right.to > now_have:
        assert right.recruits == right.to - now_have <= at_hand + sum(age >= 60 for age in free)
        assert all(age >= Patience().stable.total_seconds() for age in ages)
    else:
        assert right.recruits == 0
    assert right == choose(elastic, now_have, capacity, Patience(), START)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.sampled_from([0.0, 5.0, 60.0]))
def test_capacity_that_comes_and_goes_costs_a_bounded_number_of_changes(period: int, scaling: float):
    """An hour in which a node is there for a while and gone for a while: each change doubles the pause before the next growth."""
    elastic, size_now = elasticity(most=2, scaling=scaling), 1
    for second in range(3600):
        now, (turn, since) = START + second * SECOND, divmod(second, 2 * period)
        is_there = since < period
        free = (START + 2 * period * turn * SECOND,) if is_there and size_now == 1 else ()
        right = choose(elastic, size_now, Capacity(0, free), Patience(), now).to if is_there else 1
        if right != size_now:
            elastic = replace(elastic, changes=(*elastic.changes, SizeChange(now, size_now, right)))
            size_now = right
    pauses = [15 * 2**count for count in range(20)]
    most = 2 * sum(sum(pauses[:count]) < 3600 for count in range(20))
    assert len(elastic.changes) <= most < 20


EVENTS = ("kill", "lose", "come", "ask", "take", "lift", "wait", "complain")


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 7), st.integers(0, 40)), max_size=14),
    st.integers(1, 2),
    st.integers(0, 1),
)
def test_an_elastic_job_trains_through_anything_as_long_as_somebody_holds_the_state(events, per_node, spares):
    """The world checks every publication: an allowed size, whole nodes, distinct, everybody ready."""
    here = started(
        nodes=4, processes_per_node=per_node, spares=spares, replicas=4, max_restarts=100, elastic=elasticity(scaling=5.0)
    )
    fresh = iter(range(100, 200))
    for event, which, seconds in events:
        rank = which % len(here.seen.generation.members)
        victim = here.rank(rank)
        holders = [one for one in here.seen.alive if one.reformed and one.node != victim.node and here.node(one.node).serves]
        if event == "kill" and holders and victim.is_alive:
            here.kill_rank(rank)
        elif event == "lose" and holders and victim.node in here.seen.nodes:
            here.release(victim.node)
        elif event == "come":
            free_node(here, f"new{next(fresh)}")
        elif event == "ask":
            ask(here, which % 4 + 1)
        elif event == "take":
            here.change_elastic(ceiling=which % 4 + 1, ceiling_why="others need them")
        elif event == "lift":
            here.change_elastic(ceiling=None, ceiling_why=None)
        elif event == "complain" and victim.is_alive:
            here.complain(rank)
        wait(here, seconds, each=4.0)
    free_node(here, f"new{next(fresh)}")
    wait(here, 120, each=4.0)
    here.run(JobState.TRAINING, rounds=400)
    assert all(here.process(process).is_alive for process in here.seen.generation.members)
    assert size(here) <= plans.aim(here.seen.elastic)
    idle = [one for one in here.seen.alive if one.id not in here.seen.generation.members]
    assert len(idle) <= (spares + 4) * per_node
