"""What follows from what is the matter with a node: one sentence a rule, and what holds whatever happens."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.condition.states import CONDITION, OPEN, REAL, ConditionState, FaultClass, Repair, Source
from models.ids import ConditionId
from models.node.labels import HEALTH, TAINT, Worn
from models.node.states import NodeState, Schedulability
from workers.plans.brake import Brake, HoldRepairs
from workers.plans.repair import LEAVES, plan, repair_of, times
from workers.plans.repair_seen import (
    CallOff,
    Conclude,
    ConditionSeen,
    Dress,
    HealthSeen,
    Leave,
    Mark,
    Policy,
    Reboot,
    Remind,
    Replace,
    RestartProcess,
    Stay,
    Unknown,
)

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
HELD = Brake("too many at once", is_new=True)


def condition(fault_class: FaultClass = FaultClass.REPLACE, **facts) -> ConditionSeen:
    wanted = {"id": ConditionId("c1"), "state": ConditionState.CONFIRMED, "state_since": NOW, "code": "xid:74", "told_at": NOW}
    return ConditionSeen(fault_class=fault_class, **(wanted | facts))


def node(*conditions: ConditionSeen, **facts) -> HealthSeen:
    return HealthSeen(**({"state": NodeState.READY, "conditions": conditions} | facts))


def actions(seen: HealthSeen, kind: type, now: datetime = NOW) -> list:
    return [action for action in plan(seen, now).actions if isinstance(action, kind)]


def test_an_idle_node_that_calls_for_another_host_is_replaced_in_one_step():
    done = plan(node(condition()), NOW).actions
    assert [type(action) for action in done] == [Conclude, Mark, Replace, Dress]
    assert done[-1].worn.labels[HEALTH] == "UnschedulablePendingReplacement"
    assert TAINT in done[-1].worn.taints


def test_work_is_asked_to_leave_before_a_repair_and_the_repair_waits_for_it_within_the_limit():
    (leave,) = actions(node(condition(), is_busy=True), Leave)
    assert leave.by == NOW + Policy().drain
    assert leave.why.startswith(LEAVES)
    begun = condition(state=ConditionState.REPAIRING)
    waits = node(begun, is_busy=True, leave_by=leave.by, leave_why=leave.why, schedulability=Schedulability.PENDING_REPLACEMENT)
    assert not actions(waits, Replace)
    assert plan(waits, NOW).again_in == Policy().drain
    assert actions(waits, Replace, leave.by)
    assert actions(replace(waits, is_busy=False), Replace)


def test_an_earlier_deadline_of_somebody_else_is_kept():
    soon = NOW + timedelta(seconds=30)
    seen = node(condition(), is_busy=True, leave_by=soon, leave_why="a spot notice")
    assert not actions(seen, Leave)
    assert actions(seen, Replace, soon)


def test_a_device_off_the_bus_waits_for_nobody():
    assert actions(node(condition(code="xid:79"), is_busy=True), Replace)


def test_the_same_fault_again_after_a_reboot_calls_for_another_host():
    assert repair_of(condition(FaultClass.REBOOT), Policy()) is Repair.REBOOT
    assert repair_of(condition(FaultClass.REBOOT, reboots=1), Policy()) is Repair.REPLACE
    assert repair_of(condition(FaultClass.REBOOT, reboots=1, source=Source.OPERATOR), Policy()) is Repair.REBOOT


def test_a_program_of_its_own_making_costs_no_node_and_a_transient_fault_a_process():
    assert {type(action) for action in plan(node(condition(FaultClass.APPLICATION)), NOW).actions} == {Conclude, Dress}
    assert actions(node(condition(FaultClass.TRANSIENT)), RestartProcess)
    assert not actions(node(condition(FaultClass.TRANSIENT)), Mark)


def struck(*minutes: float) -> ConditionSeen:
    return condition(FaultClass.TRANSIENT, code="xid:94", struck=tuple(NOW + timedelta(minutes=one) for one in minutes))


def test_transient_faults_that_come_again_and_again_call_for_a_reboot_and_then_for_another_host():
    assert repair_of(struck(-20, 0), Policy()) is Repair.PROCESS
    assert repair_of(struck(-20, -0.5, 0), Policy()) is Repair.PROCESS, "what comes within a minute is the same once more"
    worn_out = struck(-20, -10, 0)
    assert repair_of(worn_out, Policy()) is Repair.REBOOT
    assert repair_of(replace(worn_out, reboots=1), Policy()) is Repair.REPLACE
    assert [type(action) for action in plan(node(worn_out), NOW).actions] == [RestartProcess, Conclude, Mark, Reboot, Dress]


def test_a_process_that_a_transient_fault_has_struck_starts_anew_once_though_its_node_waits_for_a_repair():
    seen = node(struck(-20, -10, 0), is_recovered=False)
    assert actions(seen, RestartProcess)
    assert not actions(written(seen, NOW), RestartProcess)


@given(st.lists(st.integers(0, 600), max_size=12))
def test_what_comes_in_one_burst_is_counted_once(seconds):
    moments = [NOW + timedelta(seconds=one) for one in seconds]
    count = times(moments, timedelta(minutes=1))
    assert count <= len(set(seconds))
    assert (count == 0) is (not seconds)
    spread = max(seconds, default=0) - min(seconds, default=0)
    assert count <= spread // 60 + 1
    assert times([*moments, NOW + timedelta(seconds=660)], timedelta(minutes=1)) == count + 1


@pytest.mark.parametrize(
    ("unknown", "repair"), [(Unknown.LABEL, Repair.LABEL), (Unknown.REBOOT, Repair.REBOOT), (Unknown.IGNORE, Repair.NOTHING)]
)
def test_a_code_that_nobody_knows_follows_the_policy(unknown, repair):
    assert repair_of(condition(FaultClass.UNKNOWN), Policy(unknown=unknown)) is repair


def test_one_sign_alone_is_believed_only_when_it_lasts_or_comes_again():
    suspected = condition(FaultClass.REBOOT, state=ConditionState.SUSPECTED)
    assert not actions(node(suspected), Mark)
    assert plan(node(suspected), NOW).again_in == Policy().suspect
    assert actions(node(suspected), Mark, NOW + Policy().suspect)
    assert actions(node(replace(suspected, seen=2)), Mark)


def test_what_is_believed_is_written_down_first_so_that_the_brake_counts_it_before_its_repair():
    suspected = condition(FaultClass.REBOOT, state=ConditionState.SUSPECTED, seen=2)
    first = plan(node(suspected), NOW)
    assert [type(action) for action in first.actions] == [Conclude, Mark, Dress]
    assert first.actions[0].new is ConditionState.CONFIRMED
    assert first.again_in == timedelta(0)
    assert actions(written(node(suspected), NOW), Reboot)
    assert not actions(replace(written(node(suspected), NOW), brake=HELD), Reboot)


def test_a_count_is_believed_only_on_a_node_that_serves():
    counted = condition(FaultClass.REBOOT, state=ConditionState.SUSPECTED, seen=2, source=Source.CHECK, code="count")
    assert not actions(node(counted, state=NodeState.CHECKING), Conclude, NOW + timedelta(hours=1))
    assert actions(node(counted), Conclude)
    assert actions(node(counted, state=NodeState.DRAINING), Conclude)


def test_a_place_whose_hosts_are_replaced_again_and_again_waits_longer_for_the_next():
    assert [action.failures for action in actions(node(condition(), replaced=3), Replace)] == [3]


def test_without_recovery_a_node_is_marked_and_nothing_more():
    done = plan(node(condition(), is_recovered=False, is_busy=True), NOW).actions
    assert {type(action) for action in done} == {Conclude, Mark, Dress}
    assert actions(node(condition(), is_recovered=False), Conclude)[0].new is ConditionState.HELD


def test_a_repair_that_has_not_begun_goes_no_further_when_recovery_is_switched_off():
    begun = condition(FaultClass.REBOOT, state=ConditionState.REPAIRING)
    left = node(begun, is_busy=True, leave_by=NOW, leave_why=f"{LEAVES}x", is_recovered=False)
    (held,) = actions(left, Conclude)
    assert held.new is ConditionState.HELD
    assert actions(left, Stay)
    assert not actions(left, Reboot, NOW + timedelta(hours=1))
    asked = replace(left, state=NodeState.DRAINING, is_free=False, has_reboot_to_call_off=True)
    assert actions(asked, CallOff)
    assert not actions(replace(asked, is_recovered=True), CallOff)


@pytest.mark.parametrize("state", [NodeState.REBOOTING, NodeState.CHECKING])
def test_a_host_that_starts_anew_already_is_under_repair_whatever_the_recovery(state):
    seen = node(condition(FaultClass.REBOOT, state=ConditionState.REPAIRING), state=state, is_recovered=False, starts=1)
    assert not actions(seen, Conclude)
    assert actions(replace(seen, state=NodeState.READY), Conclude)[0].new is ConditionState.RESOLVED


def test_what_is_held_is_told_again_and_again():
    seen = node(condition(state=ConditionState.HELD), is_recovered=False, schedulability=Schedulability.PENDING_REPLACEMENT)
    assert not actions(seen, Remind)
    assert actions(seen, Remind, NOW + Policy().remind)


def test_a_brake_holds_what_rests_on_suspicion_and_not_what_an_operator_asked_for():
    held = plan(node(condition(), brake=HELD), NOW).actions
    assert any(isinstance(action, HoldRepairs) for action in held)
    assert not any(isinstance(action, Replace) for action in held)
    assert actions(node(condition(source=Source.OPERATOR), brake=HELD), Replace)


def test_a_node_that_was_started_anew_is_well_and_its_work_may_stay():
    cured = condition(FaultClass.REBOOT, state=ConditionState.REPAIRING)
    seen = node(cured, starts=1, schedulability=Schedulability.PENDING_REBOOT, leave_why=f"{LEAVES}x", leave_by=NOW)
    done = plan(seen, NOW).actions
    assert [type(action) for action in done] == [Conclude, Mark, Stay, Dress]
    assert done[1].schedulability is Schedulability.SCHEDULABLE


def test_what_people_and_groups_put_on_a_node_stays_on_it():
    worn = Worn({"mine": "too", HEALTH: "Nonsense", "old": "x"}, ({"Key": "k", "Value": "v", "Effect": "NoSchedule"},))
    seen = node(worn=worn, declared=Worn({"tier": "gold"}), declared_before=Worn({"old": "x"}))
    (dress,) = actions(seen, Dress)
    assert dict(dress.worn.labels) == {"mine": "too", "tier": "gold", HEALTH: "Schedulable"}
    assert dress.worn.taints == worn.taints


# ------------------------------------------------------------------------------------------------ whatever happens

CONDITIONS = st.builds(
    ConditionSeen,
    id=st.sampled_from([ConditionId(f"c{number}") for number in range(4)]),
    state=st.sampled_from(OPEN),
    state_since=st.integers(0, 7200).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    fault_class=st.sampled_from(FaultClass),
    code=st.sampled_from(["xid:79", "xid:73", "count"]),
    told_at=st.just(NOW),
    source=st.sampled_from(Source),
    seen=st.integers(1, 3),
    reboots=st.integers(0, 2),
    struck=st.lists(st.integers(0, 300).map(lambda seconds: NOW - timedelta(seconds=seconds)), max_size=5).map(tuple),
)
NODES = st.builds(
    HealthSeen,
    state=st.sampled_from([NodeState.READY, NodeState.SUSPECT, NodeState.CHECKING]),
    conditions=st.lists(CONDITIONS, max_size=4, unique_by=lambda one: one.id).map(tuple),
    is_busy=st.booleans(),
    is_recovered=st.booleans(),
    brake=st.sampled_from([Brake(), Brake("held"), HELD]),
)


def written(seen: HealthSeen, now: datetime) -> HealthSeen:
    """The node after the plan's actions; a restart or a replacement is carried out at once."""
    for action in plan(seen, now).actions:
        seen = told(seen, action, now) if isinstance(action, Conclude | Remind) else replace(seen, **changes(seen, action))
    return seen


def told(seen: HealthSeen, action: Conclude | Remind, now: datetime) -> HealthSeen:
    rows = {row.id: row for row in seen.conditions}
    row = replace(rows[action.condition], told_at=now)
    if isinstance(action, Conclude):
        CONDITION.check(row.state, action.new)
        row = replace(row, state=action.new, state_since=now)
    return replace(seen, conditions=tuple(one for one in (rows | {row.id: row}).values() if one.state in OPEN))


def changes(seen: HealthSeen, action) -> dict:
    match action:
        case Mark(schedulability=new):
            return {"schedulability": new}
        case Leave(by=by, why=why):
            return {"leave_by": by, "leave_why": why}
        case Stay():
            return {"leave_by": None, "leave_why": None}
        case Reboot() | CallOff():
            is_begun = isinstance(action, Reboot)
            start = {"starts": seen.starts + is_begun, "is_busy": seen.is_busy and not is_begun}
            return {**start, "state": NodeState.READY, "has_reboot_to_call_off": False}
        case Replace():
            return {"state": NodeState.RELEASING, "is_wanted": False}
        case Dress(worn=worn):
            return {"worn": worn}
        case HoldRepairs():
            return {"brake": replace(seen.brake, is_new=False)}
    return {}


@given(NODES)
@settings(max_examples=150)
def test_no_node_stays_kept_from_work_without_an_end_or_somebody_who_is_told(seen: HealthSeen):
    now = NOW
    for _ in range(60):
        seen = written(seen, now)
        if seen.state is NodeState.RELEASING:
            return
        seen = replace(seen, state=NodeState.READY)
        now += timedelta(minutes=5)
    waits = [row for row in seen.conditions if row.state in REAL]
    if seen.schedulability is Schedulability.SCHEDULABLE:
        assert not waits
        return
    assert waits
    assert all(row.state is ConditionState.HELD and now - row.told_at <= Policy().remind + timedelta(minutes=5) for row in waits)
    assert not seen.is_recovered or seen.brake.why is not None


@given(NODES)
@settings(max_examples=150)
def test_a_plan_comes_to_rest_and_its_moves_are_legal(seen: HealthSeen):
    for _ in range(6):
        before, seen = seen, written(seen, NOW)
        if before == seen:
            break
    assert not [action for action in plan(seen, NOW).actions if not isinstance(action, Remind)]


@given(NODES)
@settings(max_examples=100)
def test_without_recovery_no_repair_ever_begins(seen: HealthSeen):
    seen = replace(seen, is_recovered=False)
    now = NOW
    for _ in range(20):
        assert not [a for a in plan(seen, now).actions if isinstance(a, Reboot | Replace | Leave | HoldRepairs)]
        seen = written(seen, now)
        now += timedelta(minutes=7)


@given(NODES)
@settings(max_examples=100)
def test_the_label_always_says_what_the_node_is_taken_for(seen: HealthSeen):
    seen = written(seen, NOW)
    if seen.state is not NodeState.RELEASING:
        assert seen.worn.labels[HEALTH] == seen.schedulability.value
        assert (TAINT in seen.worn.taints) is (seen.schedulability is not Schedulability.SCHEDULABLE or seen.leave_why is not None)
