"""Many nodes at once: dead ones are replaced in parallel, silent ones are left alone, and nobody is forgotten (R-12)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from api.operations.hardware_reports import TELL
from everstep.hardware import FaultClass, HardwareFault
from models.condition import queries
from models.condition.changes import request_resumption
from models.events import Event
from models.node import queries as nodes
from models.node.states import NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane


@pytest.fixture
def plane(sessions, listen):
    return SmallPlane(sessions, listen(NUDGE))


def until(plane: SmallPlane, claim, seconds: float = 120.0) -> None:
    """Time passes in longer steps than the plane's own: what is waited for takes several."""
    for _ in range(int(seconds)):
        if claim():
            return
        plane.run(1, every=1)
    raise AssertionError(f"not within {seconds} s: {plane.states()}")


def names(plane: SmallPlane) -> list[str]:
    with unit_of_work(plane.sessions) as session:
        return [event.name for event in session.scalars(select(Event).order_by(Event.sequence))]


def hold_of(plane: SmallPlane, cluster_id: str):
    with unit_of_work(plane.sessions) as session:
        return queries.hold_of(session, plane.nodes(cluster_id)[0].group_id)


def ids(plane: SmallPlane, cluster_id: str) -> set[str]:
    return {node.id for node in plane.nodes(cluster_id)}


@pytest.mark.parametrize("count", [6, pytest.param(32, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_hosts_that_die_at_once_are_all_launched_again_within_thirty_seconds(plane, count):
    cluster_id = plane.serving(count)
    before = plane.nodes(cluster_id)
    for node in before[: count - 2]:
        plane.die(node.instance_id)
    start = plane.clock.at
    until(plane, lambda: len(ids(plane, cluster_id) - {node.id for node in before}) == count - 2, seconds=30)
    assert plane.clock.at - start <= timedelta(seconds=30)
    assert "repairs held" not in names(plane)
    until(plane, lambda: plane.states()["node"] == ["ready"] * count, seconds=60)


def test_a_control_plane_that_hears_nothing_of_most_nodes_suspects_itself_and_goes_on_when_they_are_heard(plane):
    cluster_id = plane.serving(5)
    before = plane.nodes(cluster_id)
    for node in before[:3]:
        plane.silence(node.instance_id)
    plane.run(120, every=15)
    assert ids(plane, cluster_id) == {node.id for node in before}
    assert names(plane).count("repairs held") == 1
    assert "suspects itself" in hold_of(plane, cluster_id).why
    for node in before[:3]:
        plane.speak_again(node.instance_id)
    plane.run(10, every=2)
    assert hold_of(plane, cluster_id).ended_at is not None
    assert "repairs resumed" in names(plane)
    assert plane.states()["node"] == ["ready"] * 5


def test_what_is_held_back_goes_on_when_somebody_says_so(plane):
    cluster_id = plane.serving(4)
    before = plane.nodes(cluster_id)
    for node in before[:2]:
        plane.silence(node.instance_id)
    plane.run(60, every=10)
    assert ids(plane, cluster_id) == {node.id for node in before}
    with unit_of_work(plane.sessions) as session:
        hold = queries.open_hold(session, before[0].group_id, lock=True)
        request_resumption(session, hold, "workers", why="ops says so.", free_for=timedelta(minutes=10), now=plane.clock.at)
    until(plane, lambda: len(ids(plane, cluster_id) - {node.id for node in before}) == 2, seconds=30)


def test_one_silent_node_is_replaced_when_its_patience_has_run_out(plane):
    cluster_id = plane.serving(4)
    before = plane.nodes(cluster_id)
    plane.silence(before[0].instance_id)
    until(plane, lambda: bool(ids(plane, cluster_id) - {node.id for node in before}), seconds=45)
    assert "repairs held" not in names(plane)


def test_a_fault_of_every_node_at_once_replaces_one_and_asks(plane):
    """As a driver does that is bad everywhere."""
    cluster_id = plane.serving(4)
    before = plane.nodes(cluster_id)
    for node in before:
        told = HardwareFault("f1", "nvidia", "xid:74", FaultClass.REPLACE, "T", "R", "e", plane.clock.at.timestamp())
        with unit_of_work(plane.sessions) as session:
            TELL[HardwareFault](session, nodes.get(session, node.id, lock=True), told, plane.clock.at)
    plane.run(60, every=2)
    assert len({node.id for node in before} - ids(plane, cluster_id)) <= 1
    held = [node for node in plane.nodes(cluster_id) if node.schedulability != "Schedulable"]
    assert len(held) >= 3
    assert all(node.state is NodeState.READY for node in held)
    assert names(plane).count("repairs held") == 1
    plane.clock.at += timedelta(hours=1)
    plane.listen()
    until(plane, lambda: not ids(plane, cluster_id) & {node.id for node in before}, seconds=300)
    until(plane, lambda: plane.states()["node"] == ["ready"] * 4)
