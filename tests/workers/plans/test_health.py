"""Which nodes are examined when, and what follows from what they find. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from models.health.states import CheckKind, CheckState
from workers.plans.health import PATIENCE, Ask, CheckSeen, Close, GiveBack, GiveUp, Keep, NodeSeen, Replace, Skip, plan

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)
STRESS = frozenset({CheckKind.STRESS})
TRAINING = frozenset({CheckKind.TRAINING})


def node(number: int, state: CheckState = CheckState.WAITING, kinds: frozenset[CheckKind] = STRESS, **changes) -> NodeSeen:
    return replace(NodeSeen(f"c{number}", "workers", state, NOW, NOW, kinds, f"127.77.0.{number}", 9000 + number), **changes)


def seen(*nodes: NodeSeen, **changes) -> CheckSeen:
    peers = {"workers": tuple((one.address, one.port) for one in nodes)}
    return CheckSeen(nodes, peers, **changes)


def actions(*nodes: NodeSeen, now: datetime = NOW, **changes) -> tuple:
    return plan(seen(*nodes, **changes), now).actions


def test_nodes_without_work_are_asked_at_once_and_busy_ones_are_waited_for():
    assert actions(node(1), node(2, is_busy=True), node(3, serves=False)) == (Ask("c1", (), (), "The node has no work."),)
    assert actions(node(2, is_busy=True), now=NOW + PATIENCE - timedelta(seconds=1)) == ()


@pytest.mark.parametrize("changes, why", [({"is_busy": True}, "it still had work"), ({"serves": False}, "it was not in service")])
def test_after_ten_minutes_a_node_that_cannot_be_asked_is_left_out(changes, why):
    (skip,) = actions(node(1, **changes), now=NOW + PATIENCE)
    assert skip == Skip("c1", f"After 10 minutes {why}.")


def test_who_measures_links_is_given_every_other_node_of_the_group_that_serves():
    (ask, _) = actions(node(1, kinds=frozenset({CheckKind.CONNECTIVITY})), node(2))
    assert ask.peers == (("127.77.0.2", 9002),)


def test_those_that_train_together_are_asked_together_once_all_of_them_can():
    both = (node(1, kinds=TRAINING), node(2, kinds=TRAINING, is_busy=True))
    assert actions(*both) == ()
    assert [ask.team for ask in actions(node(1, kinds=TRAINING), node(2, kinds=TRAINING))] == [("c1", "c2")] * 2
    late = actions(*both, now=NOW + PATIENCE)
    assert late == (Skip("c2", "After 10 minutes it still had work."), Ask("c1", (), ("c1",), "1 nodes have no work."))


def test_what_failed_is_replaced_or_kept_from_work_and_what_passed_is_given_back_once():
    failed = node(1, CheckState.FAILED, is_held=True, why="disk is slow")
    assert actions(failed) == (Replace("c1", "Deep health checks failed: disk is slow"),)
    assert actions(failed, replaces=False) == (Keep("c1", "Deep health checks failed: disk is slow"),)
    assert isinstance(actions(node(1, CheckState.PASSED, is_held=True))[0], GiveBack)
    done = actions(node(1, CheckState.PASSED), node(2, CheckState.FAILED), node(3, CheckState.SKIPPED))
    assert done == (Close("Deep health checks of 3 nodes ended: 1 passed, 1 failed, 1 skipped."),)


def test_a_node_that_goes_is_skipped_and_one_that_never_answers_is_given_up():
    assert isinstance(actions(node(1, CheckState.ASKED, is_gone=True))[0], Skip)
    assert isinstance(actions(node(1, is_gone=True))[0], Skip)
    assert actions(node(1, CheckState.ASKED), now=NOW + timedelta(minutes=29)) == ()
    assert isinstance(actions(node(1, CheckState.ASKED), now=NOW + timedelta(minutes=30))[0], GiveUp)


def test_a_check_of_no_node_and_one_of_a_cluster_that_goes_are_over_at_once():
    assert isinstance(actions()[0], Close)
    assert isinstance(actions(node(1, is_busy=True), cluster_is_going=True)[0], Close)
