from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NoReturn

from models.notify import NUDGE
from tests.workers.providers.contract import spec
from tests.workers.small_plane import SmallPlane
from workers import orphans
from workers.plane import Plane
from workers.providers.base import HostRef, HostSeen, Throttled
from workers.providers.simulated import SimulatedProvider


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


@dataclass
class ForgetfulProvider(SimulatedProvider):
    """It has launched some claims twice, and ends the host that it is told the id of."""

    extra: dict[str, HostSeen] = field(default_factory=dict)

    def hosts(self) -> tuple[HostSeen, ...]:
        return (*super().hosts(), *self.extra.values())

    def release(self, ref: HostRef) -> None:
        if ref.instance_id in self.extra:
            del self.extra[ref.instance_id]
        else:
            super().release(ref)


def test_a_second_host_of_one_claim_is_released_and_the_nodes_own_is_kept(sessions, listen):
    provider = ForgetfulProvider()
    plane = SmallPlane(sessions, listen(NUDGE), provider=provider)
    cluster_id = plane.serving(1)
    (own,) = provider.hosts()
    provider.extra["i-twice"] = replace(own, instance_id="i-twice")
    here = Plane(plane.sessions, plane.clock, plane.driver, provider)
    assert orphans.release(here) == 1
    assert provider.hosts() == (own,)
    assert [node.instance_id for node in plane.nodes(cluster_id)] == [own.instance_id]


def test_a_host_whose_launch_has_not_been_noted_is_left_to_its_node(sessions, listen):
    provider = SimulatedProvider(capacity=0)
    plane = SmallPlane(sessions, listen(NUDGE), provider=provider)
    cluster_id = plane.cluster(1, is_continuous=True)
    plane.work()
    (node,) = plane.nodes(cluster_id)
    provider.capacity = 1
    provider.launch(spec(node.id))
    assert orphans.release(Plane(plane.sessions, plane.clock, plane.driver, provider)) == 0
    assert [host.claim for host in provider.hosts()] == [node.id]


@dataclass
class BusyProvider(SimulatedProvider):
    """Asked to release, or to list if ``lists_nothing``, it wants to be left alone."""

    lists_nothing: bool = False
    asked: int = 0

    def hosts(self) -> tuple[HostSeen, ...]:
        return self._busy() if self.lists_nothing else super().hosts()

    def release(self, ref: HostRef) -> None:  # noqa: ARG002  (a port)
        self._busy()

    def _busy(self) -> NoReturn:
        self.asked += 1
        message = "asked too often"
        raise Throttled(message)


def test_a_round_ends_as_soon_as_the_provider_wants_to_be_left_alone(plane):
    provider = BusyProvider()
    here = Plane(plane.sessions, plane.clock, plane.driver, provider)
    for claim in ("first", "second"):
        provider.launch(spec(claim))
    orphans.release(here)
    assert provider.asked == 1
    provider.lists_nothing = True
    assert orphans.release(here) == 0
