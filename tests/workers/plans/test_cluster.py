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
from workers.plans.cluster_seen import LetGo, MoveCluster, RollBackGroup, WakeJob, WantNode

BUILT = {"state": GroupState.IN_SERVICE, "has_settled": True}


def serving(count: int, target: int | None = None, **more) -> World:
    nodes = tuple(ready(number) for number in range(1, count + 1))
    one = group(target=count if target is None else target, nodes=nodes, **(BUILT | more))
    return world(one, state=ClusterState.IN_SERVICE)


def test_a_new_cluster_asks_for_every_node_of_every_group():
    here = world(group("a", 2), group("b", 3))
    wanted = [action for action in here.step() if isinstance(action, WantNode)]
    assert [one.group for one in wanted] == ["g-a"] * 2 + ["g-b"] * 3


def test_a_classic_cluster_is_in_service_when_all_its_nodes_are_ready_and_not_before():
    here = world(group("a", 1), group("b", 2))
    for _ in range(3):
        here.step()
        assert here.seen.state is ClusterState.CREATING
        here._grow()
    here.step()
    assert here.seen.state is ClusterState.IN_SERVICE
    assert not here.seen.has_operation


def test_a_continuous_cluster_is_in_service_at_once_and_its_groups_follow():
    here = world(group(target=2, minimum=2), is_continuous=True)
    here.step()
    assert here.seen.state is ClusterState.IN_SERVICE
    assert here.group("workers").state is GroupState.CREATING
    here.settle()
    assert here.group("workers").state is GroupState.IN_SERVICE


def test_without_capacity_a_classic_creation_is_rolled_back_and_the_cluster_fails_with_the_reason():
    here = world(group(target=3))
    here.step()
    here._grow()
    stuck = here.group("workers").nodes[0]
    here.change_node(stuck.id, state=NodeState.REQUESTED, obstacle="all hosts are in use")
    assert any(isinstance(action, RollBackGroup) for action in here.step())
    assert here.seen.state is ClusterState.ROLLING_BACK
    here.settle()
    assert here.seen.state is ClusterState.FAILED
    assert "all hosts are in use" in here.seen.failure
    assert not here.seen.groups


def test_without_capacity_a_classic_update_goes_back_to_the_former_size():
    nodes = (ready(1), ready(2))
    here = world(
        group(target=5, state=GroupState.UPDATING, has_settled=True, is_changed=True, nodes=nodes), state=ClusterState.UPDATING
    )
    here.step()
    here.change_node("new-1", obstacle="no hosts left")
    here.settle()
    assert here.seen.state is ClusterState.IN_SERVICE
    assert here.group("workers").target == 2
    assert {node.id for node in here.nodes() if node.is_wanted} == {"n-001", "n-002"}


def test_a_continuous_cluster_waits_for_capacity():
    here = world(group(target=1), is_continuous=True)
    here.step()
    here.change_node("new-1", obstacle="no hosts left")
    here.settle()
    assert here.seen.state is ClusterState.IN_SERVICE
    assert here.group("workers").target == 1


def test_one_host_that_comes_to_nothing_is_replaced_and_a_second_one_fails_a_classic_creation():
    here = world(group(target=1))
    here.step()
    here.lose(here.nodes()[0], failures=1)
    here.now += timedelta(seconds=10)
    assert [action.failures for action in here.step()] == [1]
    here.lose(here.nodes()[1], failures=2)
    here.step()
    assert here.seen.state is ClusterState.ROLLING_BACK


def test_a_lost_nodes_place_is_filled_at_once_under_the_same_logical_id():
    here = serving(3)
    here.lose(here.nodes()[1])
    wanted = [action for action in here.step() if isinstance(action, WantNode)]
    assert [one.place for one in wanted] == ["l-002"]
    assert here.group("workers").state is GroupState.DEGRADED
    here.settle()
    assert here.group("workers").state is GroupState.IN_SERVICE


def test_without_node_recovery_a_lost_node_is_not_replaced():
    here = serving(3)
    here.seen = replace(here.seen, replaces_lost_nodes=False)
    here.lose(here.nodes()[1])
    here.settle()
    assert here.group("workers").state is GroupState.DEGRADED
    assert not any(isinstance(action, WantNode) for action in here.taken)


def test_a_place_where_hosts_come_to_nothing_is_tried_ever_more_slowly():
    here = world(
        group(target=1, nodes=(ready(1, state=NodeState.GONE, is_wanted=False, was_lost=True, failures=3),)), is_continuous=True
    )
    here.change_node("n-001", state_since=START)
    (wish,) = [action for action in here.step() if isinstance(action, WantNode)]
    assert (wish.place, wish.failures, wish.not_before) == ("l-001", 3, START + timedelta(seconds=8))


def test_scaling_down_lets_idle_nodes_go_first_and_of_these_the_newest():
    nodes = (ready(1), ready(2, is_busy=True), ready(3, is_busy=True), ready(4))
    here = world(group(target=2, nodes=nodes, state=GroupState.UPDATING, has_settled=True), state=ClusterState.UPDATING)
    gone = [action.node for action in here.step() if isinstance(action, LetGo)]
    assert gone == ["n-004", "n-001"]


def test_scaling_down_lets_nodes_go_that_do_not_serve_yet_before_those_that_do():
    nodes = (ready(1), ready(2, state=NodeState.BOOTING), ready(3))
    here = world(group(target=2, nodes=nodes, state=GroupState.UPDATING, has_settled=True), state=ClusterState.UPDATING)
    assert [action.node for action in here.step() if isinstance(action, LetGo)] == ["n-002"]


def test_deleting_a_cluster_lets_every_node_go_wakes_its_jobs_and_waits_until_all_are_gone():
    one = group(state=GroupState.DELETING, nodes=(ready(1), ready(2)))
    here = world(one, state=ClusterState.DELETING, live_jobs=("job-1",))
    actions = here.step()
    assert {action.node for action in actions if isinstance(action, LetGo)} == {"n-001", "n-002"}
    assert [action.job for action in actions if isinstance(action, WakeJob)] == ["job-1"]
    assert here.seen.state is ClusterState.DELETING
    here.settle()
    assert here.seen.state is ClusterState.DELETED


def test_an_unlisted_group_keeps_its_nodes_through_the_rollback_of_another():
    kept = group("kept", 2, nodes=(ready(1), ready(2)), **BUILT)
    grown = group("grown", 4, state=GroupState.CREATING)
    here = world(kept, grown, state=ClusterState.UPDATING)
    here.step()
    here.change_node("new-1", obstacle="no hosts left")
    here.settle()
    assert here.seen.state is ClusterState.IN_SERVICE
    assert not any(isinstance(action, RollBackGroup) and action.group == kept.id for action in here.taken)
    assert not any(isinstance(action, LetGo) and action.node in {"n-001", "n-002"} for action in here.taken)


states = st.sampled_from(NodeState)


@st.composite
def any_group(draw, name: str):
    types = draw(st.sampled_from([("ml.p5.48xlarge",), ("ml.p5.48xlarge", "ml.g5.48xlarge", "ml.g6.48xlarge")]))
    nodes = []
    for number in range(draw(st.integers(0, 6))):
        state = draw(states)
        is_going = state in (NodeState.RELEASING, NodeState.GONE, NodeState.DRAINING)
        was_lost = is_going and draw(st.booleans())
        nodes.append(
            ready(
                number,
                id=f"{name}-{number}",
                place=f"{name}-l{draw(st.integers(0, 6))}" if is_going else f"{name}-p{number}",
                state=state,
                is_wanted=not is_going and draw(st.booleans()),
                is_busy=draw(st.booleans()),
                was_lost=was_lost,
                failures=draw(st.integers(0, 4)) if was_lost else 0,
                instance_type=draw(st.sampled_from(types)),
                obstacle=draw(st.sampled_from([None, "none left"])) if state is NodeState.REQUESTED and len(types) > 1 else None,
            )
        )
    state = draw(st.sampled_from([GroupState.CREATING, GroupState.UPDATING, GroupState.IN_SERVICE, GroupState.DEGRADED]))
    target = draw(st.integers(0, 5))
    minimum = draw(st.integers(0, target))
    more = {"minimum": minimum, "minimum_since": START, "types": types}
    return group(name, target, state, has_settled=state is not GroupState.CREATING, nodes=tuple(nodes), **more)


@st.composite
def any_world(draw, *, is_continuous: bool | None = None):
    groups = [draw(any_group(name)) for name in ("a", "b")[: draw(st.integers(1, 2))]]
    continuous = draw(st.booleans()) if is_continuous is None else is_continuous
    state = draw(st.sampled_from([ClusterState.CREATING, ClusterState.UPDATING, ClusterState.IN_SERVICE]))
    return world(*groups, state=state, is_continuous=continuous)


@given(any_world())
def test_whatever_the_state_the_nodes_that_fill_places_are_never_more_than_wanted_after_a_step(here):
    here.step()
    here.step()  # a rollback lowers targets in its first step
    for one in here.seen.groups:
        assert len(one.filling) <= one.target


@given(any_world(is_continuous=True))
def test_a_continuous_cluster_reaches_its_target_from_any_state(here):
    targets = {one.name: one.target for one in here.seen.groups}
    here.settle()
    assert {one.name: one.current for one in here.seen.groups} == targets
    assert here.seen.state is ClusterState.IN_SERVICE
    assert all(one.state is GroupState.IN_SERVICE for one in here.seen.groups)


@given(any_world(is_continuous=False))
def test_a_classic_cluster_settles_from_any_state(here):
    here.settle()
    assert here.seen.state in (ClusterState.IN_SERVICE, ClusterState.FAILED)


@given(any_world(), st.data())
def test_a_cluster_that_is_deleted_at_any_moment_is_gone_in_the_end(here, data):
    for _ in range(data.draw(st.integers(0, 4))):
        here.step()
        here._grow()
    groups = tuple(replace(one, state=GroupState.DELETING) for one in here.seen.groups)
    here.seen = replace(here.seen, state=ClusterState.DELETING, groups=groups)
    here.settle()
    assert here.seen.state is ClusterState.DELETED


@given(any_world())
def test_no_busy_node_is_let_go_while_an_idle_one_of_its_group_could(here):
    for action in plan(here.seen, here.now).actions:
        if isinstance(action, LetGo):
            one = next(one for one in here.seen.groups if any(node.id == action.node for node in one.nodes))
            gone = {other.node for other in plan(here.seen, here.now).actions if isinstance(other, LetGo)}
            left = [node for node in one.filling if node.id not in gone]
            node = next(node for node in one.nodes if node.id == action.node)
            assert not node.is_busy or all(other.is_busy for other in left)


@given(any_world())
def test_the_same_snapshot_gives_the_same_actions(here):
    assert plan(here.seen, here.now) == plan(here.seen, here.now)


@pytest.mark.parametrize("state", [ClusterState.DELETED])
def test_nothing_is_done_about_a_deleted_cluster(state):
    here = world(state=state)
    assert plan(here.seen, here.now).actions == ()


def test_a_move_says_why():
    here = serving(2)
    here.lose(here.nodes()[0])
    assert all(action.why for action in here.step())
    assert not any(isinstance(action, MoveCluster) for action in here.taken)


@pytest.mark.parametrize("is_continuous", [False, True])
@pytest.mark.parametrize("capacity", ["enough", "none"])
def test_what_is_asked_of_one_group_ends_whatever_another_that_has_failed_lacks(is_continuous, capacity):
    failed = group("failed", 2, nodes=(ready(1),), state=GroupState.FAILED, has_settled=True)
    grown = group("grown", 2, nodes=(ready(2),), state=GroupState.UPDATING, has_settled=True, is_changed=True)
    state = ClusterState.IN_SERVICE if is_continuous else ClusterState.UPDATING
    here = world(failed, grown, state=state, is_continuous=is_continuous)
    here.settled["grown"] = 1
    if capacity == "none" and not is_continuous:
        here.step()
        (asked,) = (node for node in here.nodes() if node.state is NodeState.REQUESTED)
        here.change_node(asked.id, obstacle="no capacity")
    here.settle()
    assert here.seen.state is ClusterState.IN_SERVICE
    assert not here.seen.has_operation
    assert here.group("failed").state is GroupState.FAILED
