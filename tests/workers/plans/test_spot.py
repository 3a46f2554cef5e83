from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.node.states import NodeState
from models.spot.states import NOTICE, NoticeKind, NoticeState
from workers.plans.spot import HELD_FOR, Conclude, Evacuate, NoticeSeen, Release, TellAgain, plan

NOW = datetime(2031, 5, 1, tzinfo=UTC)
LEAVING = NoticeSeen(NoticeState.EVACUATING, NoticeKind.INTERRUPTION, deadline=NOW + timedelta(seconds=120))


def states(decision) -> list:
    return [getattr(action, "new", type(action)) for action in decision.actions]


def test_an_interruption_has_its_node_evacuated_at_once():
    assert states(plan(replace(LEAVING, state=NoticeState.ANNOUNCED, is_busy=True), NOW)) == [Evacuate]


def test_a_recommendation_is_a_warning_and_nothing_more_unless_a_policy_says_so():
    told = NoticeSeen(NoticeState.ANNOUNCED, NoticeKind.REBALANCE)
    assert plan(told, NOW).actions == ()
    assert states(plan(replace(told, leaves_on_rebalance=True), NOW)) == [Evacuate]


def test_a_node_that_has_long_been_empty_is_let_go():
    [action] = plan(LEAVING, NOW).actions
    assert isinstance(action, Release)
    assert action.new is NoticeState.EVACUATED


def test_a_busy_node_stays_until_the_deadline_and_is_then_taken_with_its_work():
    busy = replace(LEAVING, is_busy=True)
    assert plan(busy, NOW).actions == ()
    assert states(plan(busy, NOW + timedelta(seconds=120))) == [NoticeState.LOST]


def test_a_node_that_has_emptied_stays_a_moment_for_those_who_fetch_from_its_memory():
    empty = replace(LEAVING, emptied_at=NOW)
    assert plan(empty, NOW + HELD_FOR - timedelta(seconds=2)).actions == ()
    assert states(plan(empty, NOW + HELD_FOR)) == [NoticeState.EVACUATED]


def test_a_notice_that_stands_says_so_again_when_another_reason_for_leaving_has_ended():
    [action] = plan(replace(LEAVING, is_busy=True, is_left=False), NOW).actions
    assert isinstance(action, TellAgain)
    assert plan(replace(LEAVING, is_busy=True, is_left=False, is_wanted=False), NOW).actions == ()


def test_that_moment_ends_with_the_deadline():
    late = replace(LEAVING, deadline=NOW + timedelta(seconds=3), emptied_at=NOW)
    assert plan(late, NOW + timedelta(seconds=2.5)).again_in == timedelta(seconds=0.5)
    assert states(plan(late, NOW + timedelta(seconds=3))) == [NoticeState.EVACUATED]


def test_a_notice_that_is_taken_back_is_withdrawn_and_its_node_kept():
    [action] = plan(replace(LEAVING, is_told=False, is_busy=True), NOW).actions
    assert action == Conclude(NoticeState.WITHDRAWN, action.why)


@pytest.mark.parametrize(
    ("seen", "new"),
    [
        ({"was_lost": True, "was_struck": True}, NoticeState.LOST),
        ({"was_lost": True}, NoticeState.EVACUATED),
        ({"was_lost": False}, NoticeState.WITHDRAWN),
        ({"was_lost": True, "state": NoticeState.ANNOUNCED, "kind": NoticeKind.REBALANCE}, NoticeState.LOST),
    ],
)
def test_a_node_that_goes_first_ends_its_notice_by_what_was_on_it(seen, new):
    gone = replace(LEAVING, node_state=NodeState.RELEASING, **seen)
    assert states(plan(gone, NOW)) == [new]


@settings(max_examples=150)
@given(
    st.builds(
        NoticeSeen,
        state=st.sampled_from(NoticeState),
        kind=st.sampled_from(NoticeKind),
        deadline=st.none() | st.integers(-10, 200).map(lambda seconds: NOW + timedelta(seconds=seconds)),
        is_told=st.booleans(),
        node_state=st.sampled_from(NodeState),
        is_busy=st.booleans(),
        emptied_at=st.none() | st.integers(0, 60).map(lambda seconds: NOW - timedelta(seconds=seconds)),
        was_lost=st.booleans(),
        was_struck=st.booleans(),
        leaves_on_rebalance=st.booleans(),
        is_left=st.booleans(),
    )
)
def test_every_conclusion_is_a_legal_move_and_every_open_notice_is_looked_at_again(seen):
    decision = plan(seen, NOW)
    for action in decision.actions:
        if isinstance(action, TellAgain):
            assert seen.state is NoticeState.EVACUATING
            continue
        new = NoticeState.EVACUATING if isinstance(action, Evacuate) else action.new
        NOTICE.check(seen.state, new)
    if not NOTICE.is_terminal(seen.state) and not decision.actions:
        assert decision.again_in is not None
