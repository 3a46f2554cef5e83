"""Restarts, replacements and moves, from the wish to the node that serves again: real rows, a simulated provider."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.job.states import JobState
from models.node import queries as nodes
from models.node import wishes
from models.node.states import NodeState
from models.node.table import Node
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane
from workers.providers.base import HostRef, HostSeen, HostSpec
from workers.providers.simulated import SimulatedProvider

READY = NodeState.READY


def ask(plane: SmallPlane, node: Node, wish: str, **how) -> None:
    with unit_of_work(plane.sessions) as session:
        getattr(wishes, f"request_{wish}")(session, nodes.get(session, node.id, lock=True), why="a test", now=plane.clock.at, **how)


def host(plane: SmallPlane, node: Node) -> HostSeen:
    return plane.provider.describe(HostRef(node.id))


def is_back(plane: SmallPlane, node: Node, start: int = 1):
    return lambda: plane.node(node.id).state is READY and plane.node(node.id).host_start == start


def test_a_rebooted_node_serves_again_under_its_ids(plane):
    cluster_id = plane.serving(2)
    before = plane.nodes(cluster_id)[0]
    ask(plane, before, "reboot")
    plane.run_until(is_back(plane, before))
    after = plane.node(before.id)
    assert (after.instance_id, after.logical_id, after.address) == (before.instance_id, before.logical_id, before.address)
    assert host(plane, after).start == 1
    assert len(plane.nodes(cluster_id)) == 2


def test_a_reimaged_node_runs_the_image_that_was_asked_for(plane):
    cluster_id = plane.serving(1)
    (node,) = plane.nodes(cluster_id)
    ask(plane, node, "reimage", image="2.1.0")
    plane.run_until(is_back(plane, node))
    assert host(plane, node).image == plane.node(node.id).image == "2.1.0"


def test_a_job_leaves_a_node_before_it_is_rebooted_and_trains_on(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, replicas=3, spares=0)
    busy = plane.node(plane.members(job_id)[0].node_id)
    ask(plane, busy, "reboot")
    plane.run_until(is_back(plane, busy))
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    assert busy.id not in {member.node_id for member in plane.members(job_id)}


def test_a_suspected_node_can_be_rebooted_and_is_not_lost_for_it(plane):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    plane.silence(node.instance_id)
    plane.run_until(lambda: plane.node(node.id).state is NodeState.SUSPECT)
    ask(plane, node, "reboot")
    plane.run_until(lambda: plane.node(node.id).state is NodeState.REBOOTING)
    plane.dead.discard(node.instance_id)
    plane.run_until(is_back(plane, node))


@pytest.mark.parametrize("settings", [{}, {"NodeRecovery": "None"}])
def test_a_replaced_node_has_a_new_instance_in_its_place_whatever_the_recovery(plane, settings):
    cluster_id = plane.serving(2, settings=settings)
    old = plane.nodes(cluster_id)[0]
    ask(plane, old, "replacement")
    plane.run_until(lambda: plane.node(old.id).state is NodeState.GONE and plane.states()["node"] == ["ready"] * 2)
    places = {node.logical_id: node.instance_id for node in plane.nodes(cluster_id)}
    assert places[old.logical_id] != old.instance_id
    assert len(plane.provider.hosts()) == 2


def two_clusters(plane: SmallPlane) -> tuple[str, str]:
    here, there = plane.cluster(2, name="here", is_continuous=True), plane.cluster(1, name="there", is_continuous=True)
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * 3)
    return here, there


def move(plane: SmallPlane, node: Node, there: str) -> None:
    with unit_of_work(plane.sessions) as session:
        source, target = clusters.groups(session, node.cluster_id)[0], clusters.groups(session, there)[0]
        source.target_count -= 1
        target.target_count += 1
        wishes.request_move(session, nodes.get(session, node.id, lock=True), target, now=plane.clock.at)


def test_a_moved_node_serves_its_new_cluster_under_its_ids(plane):
    here, there = two_clusters(plane)
    before = plane.nodes(here)[0]
    move(plane, before, there)
    plane.run_until(is_back(plane, before))
    plane.run(10)
    after = plane.node(before.id)
    assert after.cluster_id == there
    assert (after.instance_id, after.logical_id, after.address) == (before.instance_id, before.logical_id, before.address)
    assert host(plane, after).tags["everstep:cluster"] == "there"
    assert (len(plane.nodes(here)), len(plane.nodes(there)), len(plane.provider.hosts())) == (1, 2, 3)


def test_a_node_that_dies_on_its_way_is_made_up_for_where_it_was_going(plane):
    here, there = two_clusters(plane)
    node = plane.nodes(here)[0]
    plane.dead.add(node.instance_id)
    move(plane, node, there)
    plane.run_until(lambda: plane.node(node.id).state is NodeState.ATTACHING)
    plane.provider.release(HostRef(node.id))
    plane.run_until(lambda: plane.node(node.id).state is NodeState.GONE and plane.states()["node"] == ["ready"] * 3)
    assert (len(plane.nodes(here)), len(plane.nodes(there))) == (1, 2)


def test_a_move_to_a_cluster_that_is_deleted_meanwhile_leaves_no_node_over(plane):
    here, there = two_clusters(plane)
    node = plane.nodes(here)[0]
    move(plane, node, there)
    plane.delete_cluster(there)
    plane.run_until(lambda: plane.cluster_state(there) is ClusterState.DELETED)
    plane.run_until(lambda: len(plane.provider.hosts()) == 1)
    assert plane.states()["node"].count("ready") == 1


class _CrashError(BaseException):
    """As ``kill -9`` of the worker: nothing is caught, nothing is cleaned up."""


@dataclass
class CrashingProvider(SimulatedProvider):
    """The worker dies right after the call that is named, once."""

    crash_after: set[str] = field(default_factory=set)
    restarts: int = 0

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        before = self.describe(ref).start
        seen = super().reboot(ref, spec)
        self.restarts += seen.start - before
        return self._perhaps("reboot", seen)

    def launch(self, spec: HostSpec) -> HostSeen:
        return self._perhaps("launch", super().launch(spec))

    def _perhaps(self, call: str, seen: HostSeen) -> HostSeen:
        if call in self.crash_after:
            self.crash_after.remove(call)
            raise _CrashError
        return seen


class CrashedPlane(SmallPlane):
    """A worker that dies leaves its lease behind; the next look comes when that has run out."""

    crashes = 0

    def reconcile(self, kind: str, row_id: str) -> None:
        try:
            super().reconcile(kind, row_id)
        except _CrashError:
            self.crashes += 1


@pytest.fixture
def crashing(sessions, listen):
    return CrashedPlane(sessions, listen(NUDGE), provider=CrashingProvider())


def test_a_crash_between_the_reboot_and_its_note_does_not_reboot_twice(crashing):
    cluster_id = crashing.serving(1)
    (node,) = crashing.nodes(cluster_id)
    crashing.provider.crash_after.add("reboot")
    ask(crashing, node, "reboot")
    crashing.run_until(is_back(crashing, node))
    assert (crashing.crashes, crashing.provider.restarts) == (1, 1)


def test_a_replacement_is_completed_once_when_the_control_plane_dies_in_it(crashing):
    cluster_id = crashing.serving(2)
    old = crashing.nodes(cluster_id)[0]
    crashing.provider.crash_after.add("launch")
    ask(crashing, old, "replacement")
    crashing.run_until(lambda: crashing.node(old.id).state is NodeState.GONE and crashing.states()["node"] == ["ready"] * 2)
    assert crashing.crashes == 1
    assert {host.claim for host in crashing.provider.hosts()} == {node.id for node in crashing.nodes(cluster_id)}
    ask(crashing, crashing.nodes(cluster_id)[0], "reboot")
