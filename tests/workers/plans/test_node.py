from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.ids import GroupId
from models.node.states import NODE, HostWord, NodeState, Restart
from workers.plans import host
from workers.plans.node import DropRestart, Fail, HandOver, Lose, Move, NodeSeen, Patience, StartAnew, WithdrawMove, plan

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
PATIENCE = Patience()


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def node(state: NodeState = NodeState.READY, **facts) -> NodeSeen:
    return NodeSeen(**({"state": state, "state_since": ago(100), "last_seen": ago(0.5)} | facts))


def suspect(**facts) -> NodeSeen:
    return node(NodeState.SUSPECT, **({"state_since": ago(5), "stream_lost_at": ago(6), "last_seen": ago(6)} | facts))


def only(seen: NodeSeen):
    (action,) = plan(seen, NOW).actions
    return action


def test_a_node_whose_stream_closed_a_moment_ago_is_not_even_suspected_yet():
    decision = plan(node(stream_lost_at=ago(0.4)), NOW)
    assert decision.actions == ()
    assert decision.again_in == timedelta(seconds=0.6)


def test_a_node_whose_stream_stays_closed_is_suspected():
    assert only(node(stream_lost_at=ago(1.1))).new is NodeState.SUSPECT


def test_a_node_whose_stream_closed_is_suspected_at_once_when_its_jobs_have_given_its_processes_up():
    assert only(node(stream_lost_at=ago(0.01), given_up=1)).new is NodeState.SUSPECT


def test_one_missed_beat_raises_no_suspicion_and_three_do():
    assert plan(node(last_seen=ago(5)), NOW).actions == ()
    assert only(node(last_seen=ago(6.1))).new is NodeState.SUSPECT


def test_a_suspect_that_is_heard_again_is_ready():
    assert only(suspect(stream_lost_at=None, last_seen=ago(0.1))).new is NodeState.READY


def test_a_beat_alone_does_not_clear_a_suspect_whose_stream_is_closed():
    assert plan(suspect(last_seen=ago(0.1)), NOW).actions == ()


@pytest.mark.parametrize("word", [HostWord.DEAD, HostWord.MISSING])
def test_the_providers_word_confirms_a_loss(word):
    assert isinstance(only(suspect(host_word=word, host_word_at=ago(1))), Lose)


def test_what_the_provider_said_before_the_suspicion_confirms_nothing():
    assert plan(suspect(host_word=HostWord.DEAD, host_word_at=ago(50)), NOW).actions == ()


def test_a_provider_that_says_alive_leaves_it_to_patience():
    assert plan(suspect(host_word=HostWord.ALIVE, host_word_at=ago(1)), NOW).actions == ()


def test_peers_confirm_a_loss_while_the_stream_is_closed():
    assert isinstance(only(suspect(given_up=1)), Lose)


def test_peers_alone_confirm_nothing_of_a_node_whose_stream_is_open():
    assert plan(node(given_up=3), NOW).actions == ()


def test_a_silent_node_is_replaced_only_after_its_patience():
    assert plan(suspect(stream_lost_at=ago(29), last_seen=ago(29)), NOW).actions == ()
    lost = only(suspect(stream_lost_at=ago(31), last_seen=ago(31)))
    assert isinstance(lost, Lose)
    assert "31 s" in lost.why


def test_nobody_is_silent_while_nobody_listens():
    assert plan(node(last_seen=ago(600), heard_since=ago(5)), NOW).actions == ()
    assert only(node(last_seen=ago(600), heard_since=ago(7))).new is NodeState.SUSPECT
    away = suspect(stream_lost_at=None, last_seen=ago(600), heard_since=ago(29))
    assert plan(away, NOW).actions == ()
    assert isinstance(only(replace(away, heard_since=ago(31))), Lose)
    checking = node(NodeState.CHECKING, last_seen=ago(600), heard_since=ago(29))
    assert plan(checking, NOW).actions == ()
    assert isinstance(only(replace(checking, heard_since=ago(31))), Fail)


def test_without_node_recovery_only_a_host_that_is_missing_is_lost():
    silent = suspect(is_recovered=False, stream_lost_at=ago(500), last_seen=ago(500), given_up=2)
    assert plan(silent, NOW).actions == ()
    assert isinstance(only(replace(silent, host_word=HostWord.MISSING, host_word_at=ago(1))), Lose)


def test_a_node_is_ready_when_its_lifecycle_script_has_succeeded():
    assert plan(node(NodeState.CHECKING), NOW).actions == ()
    assert only(node(NodeState.CHECKING, lifecycle_done=True)).new is NodeState.READY


def test_a_failed_lifecycle_script_fails_the_node_with_its_words():
    assert only(node(NodeState.CHECKING, lifecycle_failure="exit code 3")) == Fail("exit code 3")


def test_a_node_that_does_not_boot_in_time_fails():
    booting = node(NodeState.BOOTING, last_seen=None)
    assert plan(booting, NOW).again_in == PATIENCE.boot - timedelta(seconds=100)
    assert isinstance(only(replace(booting, state_since=ago(601))), Fail)


def test_a_node_that_dies_while_it_boots_fails_at_once():
    assert isinstance(only(node(NodeState.BOOTING, host_word=HostWord.DEAD, host_word_at=ago(1))), Fail)


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.SUSPECT])
def test_an_unwanted_node_that_serves_is_drained_first(state):
    assert only(node(state, is_wanted=False)).new is NodeState.DRAINING


@pytest.mark.parametrize("state", [NodeState.REQUESTED, NodeState.BOOTING, NodeState.CHECKING, NodeState.REBOOTING])
def test_an_unwanted_node_that_does_not_serve_is_released_at_once(state):
    assert only(node(state, is_wanted=False)).new is NodeState.RELEASING


def test_a_draining_node_is_released_when_its_jobs_have_left_and_no_later_than_its_patience():
    draining = node(NodeState.DRAINING, is_wanted=False, state_since=ago(3), is_busy=True)
    assert plan(draining, NOW).actions == ()
    assert only(replace(draining, is_busy=False)).new is NodeState.RELEASING
    assert only(replace(draining, state_since=ago(11))).new is NodeState.RELEASING


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.SUSPECT])
def test_a_node_is_drained_before_it_is_started_anew(state):
    assert only(node(state, restart=Restart.REBOOT)).new is NodeState.DRAINING
    draining = node(NodeState.DRAINING, restart=Restart.REBOOT, state_since=ago(3), is_busy=True)
    assert plan(draining, NOW).actions == ()
    assert isinstance(only(replace(draining, is_busy=False)), StartAnew)
    assert isinstance(only(replace(draining, state_since=ago(11))), StartAnew)


def test_a_restart_may_wait_longer_for_jobs_and_leave_them_alone_in_the_end():
    draining = node(
        NodeState.DRAINING,
        restart=Restart.REIMAGE,
        restart_drain=timedelta(minutes=5),
        restart_is_forced=False,
        state_since=ago(200),
        is_busy=True,
    )
    assert plan(draining, NOW).actions == ()
    assert isinstance(only(replace(draining, state_since=ago(301))), DropRestart)
    assert isinstance(only(replace(draining, state_since=ago(301), restart_is_forced=True)), StartAnew)


def test_a_node_that_does_not_come_back_is_lost_and_a_dead_host_is_given_its_time():
    back = node(NodeState.REBOOTING, host_word=HostWord.DEAD, host_word_at=ago(1))
    assert plan(back, NOW).actions == ()
    assert isinstance(only(replace(back, host_word=HostWord.MISSING)), Lose)
    assert isinstance(only(replace(back, state_since=NOW - PATIENCE.reboot)), Lose)


def test_a_node_is_drained_before_it_is_handed_over():
    there = GroupId("g-there")
    assert only(node(move_to=there)).new is NodeState.DETACHING
    detaching = node(NodeState.DETACHING, move_to=there, state_since=ago(3), is_busy=True)
    assert plan(detaching, NOW).actions == ()
    assert only(replace(detaching, is_busy=False)) == HandOver(there, "The node is drained.")


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.SUSPECT, NodeState.DETACHING])
def test_a_move_to_a_group_that_is_going_is_withdrawn(state):
    assert isinstance(only(node(state, move_to=GroupId("g-there"), move_is_possible=False)), WithdrawMove)


def test_the_provider_is_asked_for_a_start_that_it_has_not_carried_out():
    assert isinstance(host.plan(host.HostSeen(NodeState.REBOOTING, is_restarted=False), NOW).actions[0], host.Reboot)
    for state in (NodeState.UPDATING, NodeState.ATTACHING):
        assert isinstance(host.plan(host.HostSeen(state, is_restarted=False), NOW).actions[0], host.Reimage)


def test_a_host_that_may_still_appear_is_not_believed_to_be_missing():
    for state in (NodeState.BOOTING, NodeState.RELEASING):
        seen = host.HostSeen(state, unsettled_until=NOW + timedelta(seconds=1))
        assert not host.plan(seen, NOW).actions[0].is_final
        assert host.plan(seen, NOW + timedelta(seconds=1)).actions[0].is_final


times = st.none() | st.integers(0, 120).map(ago)
nodes = st.builds(
    NodeSeen,
    state=st.sampled_from(NodeState),
    state_since=st.integers(0, 5000).map(ago),
    is_wanted=st.booleans(),
    is_busy=st.booleans(),
    last_seen=times,
    stream_lost_at=times,
    lifecycle_done=st.booleans(),
    lifecycle_failure=st.none() | st.just("exit code 1"),
    host_word=st.none() | st.sampled_from(HostWord),
    host_word_at=times,
    given_up=st.integers(0, 2),
    is_recovered=st.booleans(),
    restart=st.none() | st.sampled_from(Restart),
    restart_drain=st.none() | st.integers(0, 90).map(lambda seconds: timedelta(seconds=seconds)),
    restart_is_forced=st.booleans(),
    move_to=st.none() | st.just(GroupId("g-there")),
    move_is_possible=st.booleans(),
)


@given(nodes)
def test_every_move_is_legal_and_says_why(seen):
    for action in plan(seen, NOW).actions:
        assert action.why
        for state in _leads_to(seen, action):
            NODE.check(seen.state, state)


def _leads_to(seen: NodeSeen, action) -> tuple[NodeState, ...]:
    match action:
        case Move(new=new):
            return (new,)
        case StartAnew():
            return (NodeState.REBOOTING if seen.restart is Restart.REBOOT else NodeState.UPDATING,)
        case HandOver():
            return (NodeState.ATTACHING,)
        case DropRestart():
            return (NodeState.READY,)
        case WithdrawMove():
            return (NodeState.READY,) if seen.state is NodeState.DETACHING else ()
        case Lose() | Fail():
            return (NodeState.RELEASING,)


@given(nodes)
def test_unreachable_is_not_dead(seen):
    """A wanted node that serves is given up only on a second witness's word or after its patience."""
    if seen.state in (NodeState.READY, NodeState.SUSPECT) and seen.is_wanted:
        for action in plan(seen, NOW).actions:
            if isinstance(action, Lose):
                heard = [at for at in (seen.last_seen, seen.stream_lost_at) if at is not None]
                silence = NOW - max(heard, default=seen.state_since)
                is_fresh = seen.host_word_at is not None and seen.host_word_at >= seen.state_since
                by_provider = is_fresh and seen.host_word in (HostWord.DEAD, HostWord.MISSING)
                by_peers = seen.stream_lost_at is not None and seen.given_up > 0
                assert seen.state is NodeState.SUSPECT
                assert by_provider or by_peers or silence > PATIENCE.loss


@given(nodes)
def test_what_waits_for_time_to_pass_says_when_to_look_again(seen):
    decision = plan(seen, NOW)
    if seen.state in (NodeState.BOOTING, NodeState.CHECKING, NodeState.SUSPECT, NodeState.REBOOTING, NodeState.UPDATING):
        assert decision.actions or decision.again_in is not None


@pytest.mark.parametrize(
    ("state", "action"),
    [
        (NodeState.REQUESTED, host.Launch),
        (NodeState.BOOTING, host.Ask),
        (NodeState.CHECKING, host.Ask),
        (NodeState.SUSPECT, host.Ask),
        (NodeState.REBOOTING, host.Ask),
        (NodeState.ATTACHING, host.Ask),
        (NodeState.RELEASING, host.Release),
    ],
)
def test_the_provider_is_asked_for_what_the_state_needs(state, action):
    assert isinstance(host.plan(host.HostSeen(state), NOW).actions[0], action)


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.DRAINING, NodeState.DETACHING, NodeState.GONE])
def test_the_provider_is_left_alone_otherwise(state):
    assert host.plan(host.HostSeen(state), NOW).actions == ()


def test_a_node_that_is_no_longer_wanted_is_not_launched():
    assert host.plan(host.HostSeen(NodeState.REQUESTED, is_wanted=False), NOW).actions == ()


def test_a_launch_that_was_impossible_is_tried_again_no_sooner_than_it_may():
    seen = host.HostSeen(NodeState.REQUESTED, may_retry_at=NOW + timedelta(seconds=3))
    assert host.plan(seen, NOW).actions == ()
    assert host.plan(seen, NOW).again_in == timedelta(seconds=3)
    assert host.plan(seen, NOW + timedelta(seconds=3)).actions
