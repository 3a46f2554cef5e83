from __future__ import annotations

from tests.workers.providers.contract import spec
from workers import orphans
from workers.plane import Plane


def test_a_host_that_belongs_to_no_node_is_released_and_no_other(plane):
    cluster_id = plane.serving(2)
    plane.provider.launch(spec())
    here = Plane(plane.sessions, plane.clock, plane.driver, plane.provider)
    assert orphans.release(here) == 1
    assert {host.claim for host in plane.provider.hosts()} == {node.id for node in plane.nodes(cluster_id)}
    assert orphans.release(here) == 0


def test_a_host_that_cannot_be_ended_holds_no_other_one_up(plane):
    here = Plane(plane.sessions, plane.clock, plane.driver, plane.provider)
    for claim in ("first", "second"):
        plane.provider.launch(spec(claim))
    plane.provider.stuck.add("first")
    orphans.release(here)
    assert [host.claim for host in plane.provider.hosts()] == ["first"]
    plane.provider.stuck.clear()
    orphans.release(here)
    assert plane.provider.hosts() == ()
