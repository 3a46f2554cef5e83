from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from models.cluster.states import ClusterState, GroupState
from models.ids import GroupId
from models.node.states import NodeState
from tests.workers.plans.cluster_world import START, group, ready, world
from workers.plans.cluster import plan
from workers.plans.cluster_seen import Borrow, ClusterSeen, GiveBack, LetGo, LoanSeen, PolicySeen, PutOff, TryType, WantNode
from workers.plans.fallback import fall_back

POLICY = PolicySeen(("demand",), timedelta(minutes=2), return_to_spot=True, return_after=timedelta(minutes=10))
BUILT = {"state": GroupState.IN_SERVICE, "has_settled": True}
WAITING = {"state": NodeState.REQUESTED, "obstacle": "there are no more ml.a", "state_since": START - timedelta(minutes=3)}
OLD = START - timedelta(hours=1)


def spot(*nodes, target: int = 2, **more):
    return group("spot", target, nodes=nodes, **({"is_spot": True, "policy": POLICY} | BUILT | more))


def demand(*nodes, target: int = 0, **more):
    return group("demand", target, nodes=nodes, **(BUILT | more))


def seen(*groups) -> ClusterSeen:
    return world(*groups, state=ClusterState.IN_SERVICE, is_continuous=True).seen


def loan(number: int = 1, lender: str = "g-demand") -> LoanSeen:
    return LoanSeen(number, GroupId(lender), OLD)


def actions(*groups, kind: type) -> list:
    return [action for action in fall_back(seen(*groups), START)[0] if isinstance(action, kind)]


def test_a_node_that_is_waited_for_as_long_as_the_policy_says_is_borrowed_from_the_first_group_that_is_listed():
    [one] = actions(spot(ready(1), ready(2, **WAITING)), demand(), kind=Borrow)
    assert (one.group, one.lender) == ("g-spot", "g-demand")
    assert "there are no more ml.a" in one.why


def test_nothing_is_borrowed_before_that_and_the_plan_looks_again_in_time():
    fresh = WAITING | {"state_since": START - timedelta(seconds=90)}
    borrowed, again = fall_back(seen(spot(ready(1), ready(2, **fresh)), demand()), START)
    assert borrowed == []
    assert again == timedelta(seconds=30)


def test_without_a_policy_a_spot_group_only_goes_on_asking():
    assert actions(spot(ready(2, **WAITING), policy=None), demand(), kind=Borrow) == []


def test_one_loan_stands_in_for_one_node():
    assert actions(spot(ready(1), ready(2, **WAITING), loans=(loan(),)), demand(lent=1), kind=Borrow) == []
    two = spot(ready(1, **WAITING), ready(2, **WAITING), loans=(loan(),))
    assert len(actions(two, demand(lent=1), kind=Borrow)) == 1


def test_a_lender_wants_one_node_more_and_the_spot_group_goes_on_asking():
    here = seen(spot(ready(1), ready(2, **WAITING), loans=(loan(),)), demand(lent=1))
    done = plan(here, START).actions
    assert [action.group for action in done if isinstance(action, WantNode)] == ["g-demand"]
    assert not any(isinstance(action, LetGo) for action in done)


def test_a_group_that_is_not_to_return_stops_asking():
    stays = replace(POLICY, return_to_spot=False)
    here = seen(spot(ready(1), ready(2, **WAITING), loans=(loan(),), policy=stays), demand(ready(3), lent=1))
    done = plan(here, START).actions
    assert [action.node for action in done if isinstance(action, LetGo)] == ["n-002"]
    assert not any(isinstance(action, Borrow | GiveBack) for action in done)


def test_what_was_borrowed_goes_back_when_spot_has_served_for_long_enough():
    back = ready(2, state_since=START - timedelta(minutes=4))
    groups = (spot(ready(1), back, loans=(loan(),)), demand(ready(3), lent=1))
    assert actions(*groups, kind=GiveBack) == []
    assert fall_back(seen(*groups), START)[1] == timedelta(minutes=6)
    later = fall_back(seen(*groups), START + timedelta(minutes=6))[0]
    assert [action.loan for action in later] == [1]


def test_a_group_that_scales_down_needs_no_more_loans_than_its_target():
    assert [one.loan for one in actions(spot(target=1, loans=(loan(1), loan(2))), demand(lent=2), kind=GiveBack)] == [2]


def test_a_loan_ends_with_its_lender_its_borrower_or_its_policy():
    gone = actions(spot(ready(1), loans=(loan(lender="g-none"),)), demand(), kind=GiveBack)
    deleted = actions(spot(loans=(loan(),), state=GroupState.DELETING), demand(lent=1), kind=GiveBack)
    dropped = actions(spot(ready(1), loans=(loan(),), policy=None), demand(lent=1), kind=GiveBack)
    assert [len(gone), len(deleted), len(dropped)] == [1, 1, 1]


def test_a_lender_that_has_no_hosts_either_is_passed_over():
    policy = replace(POLICY, fallback_groups=("demand", "more"))
    stuck = demand(ready(5, **WAITING), target=1)
    [one] = actions(spot(ready(2, **WAITING), policy=policy), stuck, group("more", 0, **BUILT), kind=Borrow)
    assert one.lender == "g-more"


def test_a_loan_from_a_group_that_cannot_be_had_passes_to_the_next():
    policy = replace(POLICY, fallback_groups=("demand", "more"))
    stuck = demand(ready(5, **WAITING), lent=1)
    done = fall_back(
        seen(spot(ready(1), ready(2, **WAITING), loans=(loan(),), policy=policy), stuck, group("more", 0, **BUILT)), START
    )[0]
    assert [type(action) for action in done] == [GiveBack, Borrow]


def test_the_place_of_a_node_that_its_provider_takes_is_filled_while_it_still_serves():
    here = seen(spot(ready(1), ready(2, is_taken=True, is_busy=True)))
    wanted = [action for action in plan(here, START).actions if isinstance(action, WantNode)]
    assert [(one.place, one.not_before) for one in wanted] == [("l-002", None)]
    assert not any(isinstance(action, LetGo) for action in plan(here, START).actions)


def test_it_is_filled_without_node_recovery_too_and_only_once():
    here = replace(seen(spot(ready(1), ready(2, is_taken=True))), replaces_lost_nodes=False)
    assert sum(isinstance(action, WantNode) for action in plan(here, START).actions) == 1
    newer = ready(3, place="l-002", created_at=START, state=NodeState.BOOTING)
    twice = seen(spot(ready(1), ready(2, is_taken=True), newer))
    assert not any(isinstance(action, WantNode) for action in plan(twice, START).actions)


def test_a_notice_that_is_taken_back_leaves_no_node_too_many():
    newer = ready(3, place="l-002", created_at=START, state=NodeState.BOOTING)
    done = plan(seen(spot(ready(1), ready(2, is_busy=True), newer)), START).actions
    assert [action.node for action in done if isinstance(action, LetGo)] == ["n-003"]


def test_a_spot_node_is_asked_for_as_the_most_promising_type():
    here = seen(spot(ready(1), types=("ml.b", "ml.a")))
    assert [one.instance_type for one in plan(here, START).actions if isinstance(one, WantNode)] == ["ml.b"]


def test_a_waiting_node_of_a_type_that_has_become_too_dear_is_asked_for_as_another_at_once():
    node = ready(2, state=NodeState.REQUESTED, instance_type="ml.a")
    here = seen(spot(ready(1), node, types=("ml.b",), too_dear={"ml.a": "ml.a costs 3"}))
    [one] = [action for action in plan(here, START).actions if isinstance(action, TryType)]
    assert (one.instance_type, one.is_at_once) == ("ml.b", True)


def test_while_every_type_costs_too_much_nothing_is_asked_for_and_others_stand_in():
    dear = {"types": ("ml.a",), "too_dear": {"ml.a": "ml.a costs 3"}}
    node = ready(2, **(WAITING | {"obstacle": None, "instance_type": "ml.a"}))
    done = plan(seen(spot(node, **dear), demand()), START).actions
    [put_off] = [action for action in done if isinstance(action, PutOff)]
    [wanted] = [action for action in done if isinstance(action, WantNode)]
    assert put_off.until > START
    assert wanted.not_before is not None
    assert wanted.message == "ml.a costs 3"
    waits = replace(node, launch_after=put_off.until, obstacle="ml.a costs 3")
    again = plan(seen(spot(waits, **dear, target=1), demand()), START).actions
    assert [type(action) for action in again if not isinstance(action, Borrow)].count(PutOff) == 0
    assert any(isinstance(action, Borrow) for action in again)
