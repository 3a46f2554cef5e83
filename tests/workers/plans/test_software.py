"""How an update of a cluster's software goes on, and when it turns back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.node.states import NodeState
from models.software.states import UpdateState
from workers.plans import software as plans
from workers.plans.batches import Batching, choose
from workers.plans.software import Begin, Close, End, FinishBatch, GroupSeen, NodeSeen, StartBatch, TurnBack, UpdateSeen, plan

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


def node(number: int, image: str | None = "1.0.0", state: NodeState = NodeState.READY, **changes) -> NodeSeen:
    wish = {"instance_type": "ml.c5.xlarge", "created_at": NOW + timedelta(seconds=number)} | changes
    return NodeSeen(f"n{number}", f"p{number}", state, image, **wish)


def group(count: int = 4, state: UpdateState = UpdateState.IN_PROGRESS, **changes) -> GroupSeen:
    wish = {"nodes": tuple(node(number) for number in range(count))} | changes
    return GroupSeen("g", "workers", state, "1.0.0", "1.1.0", **wish)


def only(seen: UpdateSeen | GroupSeen, now: datetime = NOW):
    (action,) = plan(seen if isinstance(seen, UpdateSeen) else UpdateSeen((seen,)), now).actions
    return action


@pytest.mark.parametrize(
    "batching, total, size",
    [
        (Batching(), 7, 7),
        (Batching(count=3), 7, 3),
        (Batching(count=9), 7, 7),
        (Batching(percentage=25), 7, 2),
        (Batching(percentage=1), 7, 1),
        (Batching(percentage=100), 7, 7),
        (Batching(count=1), 0, 1),
    ],
)
def test_a_batch_is_a_count_or_a_share_rounded_up_and_never_nothing(batching, total, size):
    assert batching.size(total) == size


def test_a_batch_takes_each_type_in_proportion_and_the_idle_ones_of_it_first():
    large = [node(number, instance_type="ml.c5.4xlarge", is_busy=number < 2) for number in range(6)]
    small = [node(number, instance_type="ml.c5.xlarge") for number in range(6, 9)]
    chosen = choose([*large, *small], 3)
    assert [one.id for one in chosen if one.instance_type == "ml.c5.4xlarge"] == ["n2", "n3"]
    assert [one.id for one in chosen if one.instance_type == "ml.c5.xlarge"] == ["n6"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=30), st.integers(1, 40))
def test_a_batch_has_the_wished_size_and_no_type_is_more_than_one_off_its_share(kinds, size):
    nodes = [node(number, instance_type=kind, is_busy=busy) for number, (kind, busy) in enumerate(kinds)]
    chosen = choose(nodes, size)
    assert len(chosen) == min(size, len(nodes)) == len({one.id for one in chosen})
    for kind in {one.instance_type for one in nodes}:
        exact = min(size, len(nodes)) * sum(one.instance_type == kind for one in nodes) / len(nodes)
        assert abs(sum(one.instance_type == kind for one in chosen) - exact) < 1


def test_a_group_begins_then_takes_its_first_batch():
    assert isinstance(only(group(state=UpdateState.PENDING)), Begin)
    first = only(group(forward=Batching(count=2)))
    assert (first.nodes, first.places, first.image) == (("n0", "n1"), ("p0", "p1"), "1.1.0")


def test_the_next_batch_waits_until_every_node_of_the_last_serves_on_the_new_release():
    batch = frozenset({"p0", "p1"})
    nodes = (node(0, "1.1.0"), node(1, "1.1.0", NodeState.CHECKING), node(2), node(3))
    waiting = group(nodes=nodes, batch=batch, forward=Batching(count=2))
    assert plan(UpdateSeen((waiting,)), NOW).actions == ()
    through = replace(waiting, nodes=(node(0, "1.1.0"), node(1, "1.1.0"), node(2), node(3)))
    assert isinstance(only(through), FinishBatch)


def test_the_interval_passes_between_two_batches():
    nodes = (node(0, "1.1.0"), node(1))
    between = group(nodes=nodes, interval=timedelta(seconds=60), batch_done_at=NOW)
    early = plan(UpdateSeen((between,)), NOW + timedelta(seconds=58))
    assert (early.actions, early.again_in) == ((), timedelta(seconds=2))
    assert only(between, NOW + timedelta(seconds=60)).nodes == ("n1",)


def test_when_nothing_is_left_the_group_has_succeeded_and_the_update_is_closed():
    done = group(nodes=(node(0, "1.1.0"), node(1, "1.1.0")))
    assert only(done) == End("g", UpdateState.SUCCEEDED, "2 nodes run 1.1.0.")
    assert isinstance(only(replace(done, state=UpdateState.SUCCEEDED)), Close)


def test_with_alarms_the_release_is_watched_for_the_interval_before_it_has_succeeded():
    watched = group(nodes=(node(0, "1.1.0"),), interval=timedelta(seconds=60), batch_done_at=NOW, is_watched=True)
    assert plan(UpdateSeen((watched,)), NOW + timedelta(seconds=59)).actions == ()
    assert only(watched, NOW + timedelta(seconds=60)).new is UpdateState.SUCCEEDED
    ringing = UpdateSeen((watched,), ringing=(("errors", "5xx above 1 %"),))
    assert only(ringing, NOW + timedelta(seconds=59)) == TurnBack("g", "Alarm errors rings: 5xx above 1 %")


def test_a_node_that_comes_to_nothing_on_the_new_release_turns_every_group_back():
    failed = node(0, "1.1.0", NodeState.RELEASING, was_lost=True, is_wanted=False, failures=1, message="exit code 3")
    failing = group(nodes=(failed, node(1)), batch=frozenset({"p0"}))
    other = replace(group(state=UpdateState.SUCCEEDED), id="h", name="others")
    turned = plan(UpdateSeen((failing, other)), NOW).actions
    assert {action.group for action in turned} == {"g", "h"}
    assert all(isinstance(action, TurnBack) and "exit code 3" in action.why for action in turned)


def test_a_node_that_was_lost_for_another_reason_is_waited_for():
    lost = node(0, "1.1.0", NodeState.GONE, was_lost=True, is_wanted=False)
    assert plan(UpdateSeen((group(nodes=(lost, node(1)), batch=frozenset({"p0"})),)), NOW).actions == ()


def test_a_node_that_was_told_to_go_is_not_waited_for():
    told = node(0, state=NodeState.RELEASING, is_wanted=False)
    assert isinstance(only(group(nodes=(told, node(1, "1.1.0")), batch=frozenset({"p0"}))), FinishBatch)


def test_back_it_goes_in_batches_of_its_own_and_without_intervals():
    nodes = (node(0, "1.1.0"), node(1, "1.1.0"), node(2))
    back = group(
        state=UpdateState.ROLLING_BACK, nodes=nodes, forward=Batching(count=1), interval=timedelta(hours=1), batch_done_at=NOW
    )
    seen = UpdateSeen((back,), turned_because="an alarm")
    assert (only(seen).nodes, only(seen).image) == (("n0", "n1"), "1.0.0")
    home = UpdateSeen((replace(back, nodes=(node(0), node(1), node(2))),), turned_because="an alarm")
    assert only(home).new is UpdateState.ROLLED_BACK


def test_nodes_that_fail_on_the_former_release_too_end_the_rollback_as_failed():
    failed = node(0, None, NodeState.REQUESTED, failures=3, message="exit code 3")
    back = group(state=UpdateState.ROLLING_BACK, nodes=(replace(failed, image="1.0.0"),), batch=frozenset({"p0"}))
    ended = only(UpdateSeen((back,), turned_because="a node failed"))
    assert ended.new is UpdateState.FAILED
    assert "exit code 3" in ended.why


def test_hosts_that_nobody_has_got_yet_hold_nothing_up_and_are_asked_for_anew():
    waiting = node(0, "1.0.0", NodeState.REQUESTED)
    assert only(group(nodes=(waiting, node(1, "1.1.0")))).nodes == ("n0",)
    asked = replace(waiting, image="1.1.0")
    assert plan(UpdateSeen((group(nodes=(asked, node(1, "1.1.0"))),)), NOW).actions == ()
    obstructed = replace(asked, is_obstructed=True)
    assert only(group(nodes=(obstructed, node(1, "1.1.0")))).new is UpdateState.SUCCEEDED


@pytest.mark.parametrize("state", [UpdateState.IN_PROGRESS, UpdateState.ROLLING_BACK])
@pytest.mark.parametrize("batch", [frozenset(), frozenset({"p0", "p1"})])
@pytest.mark.parametrize(
    "place",
    [
        {"state": NodeState.REQUESTED, "is_obstructed": True},
        {"state": NodeState.BOOTING, "failures": 3},
        {"state": NodeState.RELEASING, "failures": 3, "was_lost": True, "is_wanted": False},
    ],
)
def test_an_update_ends_though_hosts_of_one_place_are_not_to_be_had_or_come_to_nothing(state, batch, place):
    seen = group(state=state, batch=batch)
    seen = replace(seen, nodes=(node(0, seen.goal, **place), node(1, seen.goal)))
    for _ in range(3):
        action = only(seen)
        if isinstance(action, End):
            return
        assert isinstance(action, FinishBatch | TurnBack)
        if isinstance(action, TurnBack):
            return  # a node of the batch that failed on the release
        seen = replace(seen, batch=frozenset())
    raise AssertionError(seen)


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.SUSPECT])
def test_a_node_of_the_batch_that_was_not_told_comes_with_a_later_one(state):
    seen = group(nodes=(node(0, "1.0.0", state), node(1, "1.1.0")), batch=frozenset({"p0", "p1"}))
    assert isinstance(only(seen), FinishBatch)
    assert only(replace(seen, batch=frozenset())).nodes == ("n0",)


def test_a_node_that_is_to_move_is_waited_for_until_it_has_left_or_stays():
    moving = node(0, is_moving=True)
    for batch in (frozenset(), frozenset({"p0"})):
        decision = plan(UpdateSeen((group(nodes=(moving, node(1, "1.1.0")), batch=batch),)), NOW)
        assert (decision.actions, decision.again_in) == ((), plans.LOOK_AGAIN)
    assert only(group(nodes=(replace(moving, is_moving=False), node(1, "1.1.0")))).nodes == ("n0",)
    assert only(group(nodes=(node(1, "1.1.0"),))).new is UpdateState.SUCCEEDED


@pytest.mark.parametrize("state", [UpdateState.IN_PROGRESS, UpdateState.ROLLING_BACK])
@pytest.mark.parametrize("change", [{}, {"is_moving": True}])
def test_nobody_waits_for_a_lost_node_whose_place_is_not_filled_again(state, change):
    """The group was made smaller meanwhile, or the place has gone to another group with the node."""
    seen = group(state=state, target=1)
    lost = node(0, "0.9.0", NodeState.GONE, was_lost=True, is_wanted=False, **change)
    assert isinstance(only(replace(seen, nodes=(lost, node(1, seen.goal)))), End)
    missed = replace(seen, nodes=(replace(lost, is_moving=False), node(1, seen.goal)), target=2)
    assert plan(UpdateSeen((missed,)), NOW).actions == ()


def test_a_cluster_that_is_going_takes_its_update_with_it():
    actions = plan(UpdateSeen((group(),), cluster_is_going=True), NOW).actions
    assert [type(action) for action in actions] == [End, Close]


IDLE = plans.Patching(waits_for_idle=True, until=NOW + timedelta(hours=1))


def test_patching_when_idle_takes_idle_nodes_and_leaves_out_those_that_never_become_so():
    nodes = (node(0, is_busy=True), node(1), node(2, is_busy=True))
    patched = group(nodes=nodes, patching=IDLE)
    assert only(patched).nodes == ("n1",)
    rest = replace(patched, nodes=(node(0, is_busy=True), node(1, "1.1.0"), node(2, is_busy=True)))
    assert plan(UpdateSeen((rest,)), NOW).actions == ()
    late = only(rest, NOW + timedelta(hours=1))
    assert (type(late), late.places) == (plans.Skip, ("p0", "p2"))
    assert only(replace(rest, skipped=frozenset(late.places))).why == "1 nodes run 1.1.0; 2 were left as they are."


def test_patching_when_all_idle_touches_nobody_until_all_are_and_nobody_if_they_never_are():
    nodes = (node(0, is_busy=True), node(1))
    patched = group(nodes=nodes, patching=replace(IDLE, as_one=True))
    assert plan(UpdateSeen((patched,)), NOW).actions == ()
    assert only(replace(patched, nodes=(node(0), node(1)))).nodes == ("n0", "n1")
    assert only(patched, NOW + timedelta(hours=1)).places == ("p0", "p1")


def test_a_node_whose_jobs_did_not_leave_in_time_is_left_as_it_is_if_it_may_not_be_forced():
    gentle = plans.Patching(drain=timedelta(seconds=600), is_forced=False)
    start = only(group(patching=gentle))
    assert (start.drain, start.is_forced) == (timedelta(seconds=600), False)
    draining = node(0, state=NodeState.DRAINING, is_restarting=True)
    in_batch = group(nodes=(draining, node(1, "1.1.0")), batch=frozenset({"p0", "p1"}), patching=gentle)
    assert plan(UpdateSeen((in_batch,)), NOW).actions == ()
    assert only(replace(in_batch, nodes=(node(0), node(1, "1.1.0")))).places == ("p0",)


@dataclass
class World:
    """What the actions do to a group, played with the worst order of events."""

    group: GroupSeen
    most_out: int = 0

    def play(self, action) -> None:
        match action:
            case Begin():
                self.group = replace(self.group, state=UpdateState.IN_PROGRESS)
            case StartBatch(nodes=ids, places=places, image=image):
                serving = [replace(one, image=image) if one.id in ids else one for one in self.group.nodes]
                self.most_out = max(self.most_out, len(ids))
                self.group = replace(self.group, nodes=tuple(serving), batch=frozenset(places))
            case FinishBatch():
                self.group = replace(self.group, batch=frozenset(), batch_done_at=NOW)
            case End(new=new):
                self.group = replace(self.group, state=new)


@given(st.integers(0, 12), st.one_of(st.none(), st.integers(1, 15)), st.one_of(st.none(), st.integers(1, 100)))
def test_every_update_comes_to_its_end_and_never_has_more_nodes_out_than_a_batch(count, most, share):
    world = World(group(count, UpdateState.PENDING, forward=Batching(most, share)))
    for _ in range(100):
        actions = plan(UpdateSeen((world.group,)), NOW).actions
        if any(isinstance(action, Close) for action in actions):
            break
        for action in actions:
            world.play(action)
    assert world.group.state is UpdateState.SUCCEEDED
    assert all(one.image == "1.1.0" for one in world.group.nodes)
    assert world.most_out <= Batching(most, share).size(count)
