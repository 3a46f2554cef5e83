"""One group: of what types its nodes are, what becomes of a minimum that is missed, who goes first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.cluster.states import ClusterState, GroupState
from models.node.states import NodeState
from tests.workers.plans.cluster_world import START, World, group, ready, world
from workers.plans.cluster import plan
from workers.plans.cluster_seen import LetGo, MissMinimum, MoveCluster, MoveGroup, TryType, WantNode
from workers.plans.group import MINIMUM_WITHIN

TYPES = ("ml.p5.48xlarge", "ml.p5e.48xlarge", "ml.g5.48xlarge")


def growing(**more) -> World:
    return world(group(minimum_since=START, **more), state=ClusterState.IN_SERVICE, is_continuous=True)


class TestTypes:
    def test_a_node_is_first_asked_for_as_the_preferred_type_and_then_as_the_next(self):
        here = growing(target=1, types=TYPES)
        here.step()
        tried = []
        for _ in range(4):
            (node,) = here.nodes()
            tried.append(node.instance_type)
            here.change_node(node.id, obstacle="no hosts left")
            here.step()
        assert tried == [*TYPES, TYPES[0]]

    def test_only_the_last_type_is_followed_by_a_pause(self):
        here = growing(target=1, types=TYPES)
        here.step()
        at_once = []
        for _ in TYPES:
            here.change_node(here.nodes()[0].id, obstacle="no hosts left")
            (action,) = [one for one in here.step() if isinstance(one, TryType)]
            at_once.append(action.is_at_once)
        assert at_once == [True, True, False]

    def test_a_new_node_begins_with_the_preferred_type_again(self):
        nodes = (ready(1, instance_type=TYPES[2]),)
        here = growing(target=2, types=TYPES, nodes=nodes)
        here.step()
        assert [node.instance_type for node in here.nodes()] == [TYPES[2], TYPES[0]]

    def test_a_node_that_was_asked_for_with_types_of_its_own_is_of_one_of_them(self):
        node = ready(1, state=NodeState.REQUESTED, instance_type=TYPES[2], types=(TYPES[2], TYPES[1]), obstacle="none left")
        here = growing(target=1, types=TYPES, nodes=(node,))
        assert [one.instance_type for one in here.step() if isinstance(one, TryType)] == [TYPES[1]]

    def test_a_group_of_one_type_has_no_other_to_try(self):
        node = ready(1, state=NodeState.REQUESTED, instance_type=TYPES[0], obstacle="none left")
        here = growing(target=1, types=TYPES[:1], nodes=(node,))
        assert not [one for one in here.step() if isinstance(one, TryType)]

    def test_scaling_down_takes_the_least_preferred_type_first(self):
        nodes = tuple(ready(number, instance_type=kind) for number, kind in enumerate((TYPES[0], TYPES[2], TYPES[1], TYPES[2]), 1))
        here = growing(target=2, types=TYPES, nodes=nodes, state=GroupState.UPDATING)
        assert {one.node for one in here.step() if isinstance(one, LetGo)} == {"n-002", "n-004"}

    def test_scaling_down_spares_busy_nodes_whatever_their_type(self):
        nodes = (ready(1, instance_type=TYPES[0]), ready(2, instance_type=TYPES[2], is_busy=True))
        here = growing(target=1, types=TYPES, nodes=nodes, state=GroupState.UPDATING)
        assert {one.node for one in here.step() if isinstance(one, LetGo)} == {"n-001"}


class TestMinimum:
    def test_a_group_stays_in_creation_until_it_has_its_minimum(self):
        here = growing(target=3, minimum=2, nodes=(ready(1),))
        here.step()
        assert here.group("workers").state is GroupState.CREATING
        here.settle()
        assert here.group("workers").state is GroupState.IN_SERVICE

    def test_the_plan_looks_again_when_the_time_for_the_minimum_is_over(self):
        here = growing(target=2, minimum=2, nodes=(ready(1), ready(2, state=NodeState.BOOTING)))
        almost = START + MINIMUM_WITHIN - timedelta(seconds=2)
        assert plan(here.seen, almost).again_in == timedelta(seconds=2)
        assert not [one for one in plan(here.seen, almost).actions if isinstance(one, MissMinimum)]

    def test_a_new_group_that_misses_its_minimum_goes_back_to_nothing_and_serves(self):
        here = growing(target=3, minimum=2, nodes=(ready(1),))
        here.step()
        for node in here.nodes()[1:]:
            here.change_node(node.id, obstacle="no hosts left")
        here.now += MINIMUM_WITHIN
        missed = next(one for one in here.step() if isinstance(one, MissMinimum))
        assert "has 1 of the 2 nodes that it must have" in missed.why
        assert "no hosts left" in missed.why
        assert here.group("workers").state is GroupState.IN_SERVICE
        here.settle()
        assert here.group("workers").current == 0
        assert here.seen.state is ClusterState.IN_SERVICE

    def test_a_group_that_served_goes_back_to_what_it_was_unhealthy_nodes_first_and_then_the_newest(self):
        nodes = (ready(1), ready(2, state=NodeState.SUSPECT), ready(3), ready(4))
        here = growing(target=6, minimum=6, state=GroupState.UPDATING, has_settled=True, nodes=nodes)
        here.settled = {"workers": 2}
        here.now += MINIMUM_WITHIN
        here.step()
        let_go = [one.node for one in here.step() if isinstance(one, LetGo)]
        assert let_go[-2:] == ["n-002", "n-004"]

    def test_a_minimum_that_is_reached_is_not_missed_afterwards(self):
        here = growing(target=2, minimum=2, state=GroupState.IN_SERVICE, nodes=(ready(1),))
        here.now += 2 * MINIMUM_WITHIN
        assert not [one for one in here.step() if isinstance(one, MissMinimum)]

    @given(current=st.integers(0, 5), minimum=st.integers(1, 5), hours=st.floats(0, 6))
    def test_a_minimum_is_missed_exactly_when_it_is_not_there_and_the_time_is_over(self, current, minimum, hours):
        here = growing(target=5, minimum=minimum, nodes=tuple(ready(number) for number in range(1, current + 1)))
        actions = plan(here.seen, START + timedelta(hours=hours)).actions
        is_missed = any(isinstance(one, MissMinimum) for one in actions)
        is_built = any(isinstance(one, MoveGroup) and one.new is GroupState.IN_SERVICE for one in actions)
        assert is_built == (current >= minimum)
        assert is_missed == (not is_built and timedelta(hours=hours) >= MINIMUM_WITHIN)


class TestHurt:
    def test_a_want_of_capacity_degrades_a_continuous_group_that_serves_and_says_why(self):
        here = growing(
            target=2, state=GroupState.IN_SERVICE, nodes=(ready(1), ready(2, state=NodeState.REQUESTED, obstacle="none left"))
        )
        (moved,) = [one for one in here.step() if isinstance(one, MoveGroup)]
        assert (moved.new, moved.why) == (GroupState.DEGRADED, "1 of 2 nodes serve: none left")
        here.change_node("n-002", obstacle=None)
        here.settle()
        assert here.group("workers").state is GroupState.IN_SERVICE

    def test_a_group_that_merely_grows_is_not_degraded(self):
        here = growing(target=2, state=GroupState.IN_SERVICE, nodes=(ready(1), ready(2, state=NodeState.BOOTING)))
        assert not [one for one in here.step() if isinstance(one, MoveGroup)]

    def test_a_classic_failure_names_group_type_and_zone(self):
        node = ready(1, state=NodeState.REQUESTED, instance_type=TYPES[0], obstacle="there are no more hosts")
        here = world(group("gpus", target=1, nodes=(node,)), zone="us-east-1a")
        (moved,) = [one for one in here.step() if isinstance(one, MoveCluster)]
        assert moved.why == f"Instance group gpus cannot be provisioned with {TYPES[0]} in us-east-1a: there are no more hosts"


class TestHeads:
    def test_a_continuous_cluster_with_heads_is_in_service_when_each_of_them_has_a_node(self):
        here = world(group("head", 1, is_head=True), group("workers", 2), is_continuous=True)
        here.step()
        assert here.seen.state is ClusterState.CREATING
        here.change_node("new-1", state=NodeState.READY)
        here.step()
        assert here.seen.state is ClusterState.IN_SERVICE
        assert here.group("workers").current == 0

    @pytest.mark.parametrize("is_head", [True, False])
    def test_without_capacity_for_its_head_a_continuous_cluster_fails(self, is_head):
        here = world(group("head", 1, is_head=is_head), is_continuous=True)
        here.seen = replace(
            here.seen, groups=(replace(here.seen.groups[0], nodes=(ready(1, state=NodeState.REQUESTED, obstacle="none"),)),)
        )
        here.step()
        assert here.seen.state is (ClusterState.FAILED if is_head else ClusterState.IN_SERVICE)

    def test_a_cluster_that_failed_for_want_of_its_head_leaves_nothing_running(self):
        here = world(group("head", 1, is_head=True), group("workers", 2), is_continuous=True)
        here.step()
        here.change_node("new-1", obstacle="no hosts left")
        here.settle()
        assert here.seen.state is ClusterState.FAILED
        assert not here.seen.groups
        assert len([one for one in here.taken if isinstance(one, WantNode)]) == 3


@pytest.mark.parametrize("is_first_busy", [False, True])
def test_a_place_that_two_nodes_had_is_lost_when_the_one_that_stayed_is_lost(is_first_busy):
    """A node that its provider did not take after all, and the one that was to come instead: whichever of them stays has the place."""
    first, second = ready(1, is_busy=is_first_busy), ready(2)
    here = growing(target=1, nodes=(first, replace(second, place=first.place)), state=GroupState.IN_SERVICE, has_settled=True)
    (going,) = [one for one in here.step() if isinstance(one, LetGo)]
    assert going.gives_way
    stayed = first if is_first_busy else next(node for node in here.nodes() if node.id != going.node)
    here.change_node(going.node, is_wanted=False, state=NodeState.GONE, gave_way=True)
    here.lose(next(node for node in here.nodes() if node.id == stayed.id))
    assert [node.id for node in here.group("workers").vacancies] == [stayed.id]
    assert [one.place for one in here.step() if isinstance(one, WantNode)] == [first.place]


def test_a_node_gives_way_only_to_one_that_stays():
    first = ready(1)
    nodes = (first, replace(ready(2), place=first.place), ready(3))
    here = growing(target=0, nodes=nodes, state=GroupState.UPDATING)
    assert [one.gives_way for one in here.step() if isinstance(one, LetGo)] == [False] * 3
