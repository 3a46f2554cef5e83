"""``NodeRecovery: None``: nothing is begun by itself, and what has been begun goes no further than it must."""

from __future__ import annotations

from models.node.states import NodeState
from tests.workers.reconcilers.test_healing import set_recovery
from tests.workers.reconcilers.test_spot import announce, serving, spot_group, until, withdraw
from tests.workers.small_plane import SmallPlane
from workers.providers.base import HostRef


def taken_back(plane: SmallPlane) -> tuple[str, str]:
    """A cluster one of whose nodes was to be taken by its provider, which has thought better of it: the node, and that the other one went."""
    cluster_id = serving(plane, spot_group(count=2))
    set_recovery(plane, "None")
    struck = plane.nodes(cluster_id)[0]
    announce(plane, struck.id)
    until(plane, lambda: len(plane.nodes(cluster_id)) == 3)
    withdraw(plane, struck.id)
    until(plane, lambda: plane.states()["node"] == ["ready"] * 2)
    return cluster_id, struck.id


def test_a_node_that_is_lost_after_a_notice_was_taken_back_is_left_alone_like_any_other(plane):
    cluster_id, struck_id = taken_back(plane)
    for node in plane.nodes(cluster_id):
        plane.die(node.instance_id)
        plane.provider.release(HostRef(node.id, node.instance_id))
    until(plane, lambda: plane.nodes(cluster_id) == [])
    assert plane.node(struck_id).state is NodeState.GONE
    plane.run(60, every=5)
    assert plane.nodes(cluster_id) == []
