"""What the provider is asked for, and what is noted of its answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from models.cluster import queries as clusters
from models.cluster.table import Cluster
from models.node import queries as nodes
from models.node.hosts import settle_other_type
from models.node.states import CapacityType, NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane
from workers.providers.base import Disk, HostRef, HostSeen, HostSpec, Market, NoCapacity, ProviderError, Site, Throttled
from workers.providers.simulated import SimulatedProvider
from workers.reconcilers.host_spec import disks, sites

VPC = {"SecurityGroupIds": ["sg-1", "sg-2"], "Subnets": ["subnet-a", "subnet-b"]}


@dataclass
class FussyProvider(SimulatedProvider):
    """``troubles`` are what the next launches come to; ``asked`` when and for what they were. ``meanwhile`` is what happens while it launches."""

    troubles: deque[ProviderError] = field(default_factory=deque)
    asked: list[HostSpec] = field(default_factory=list)
    releases_throttled: int = 0
    rest: timedelta = timedelta(seconds=1)
    releases_asked: int = 0
    meanwhile: Callable[[], None] = lambda: None
    says: Mapping[str, object] = field(default_factory=dict)
    """What the answer of a launch says instead."""

    def launch(self, spec: HostSpec) -> HostSeen:
        self.asked.append(spec)
        if self.troubles:
            raise self.troubles.popleft()
        self.meanwhile()
        return replace(super().launch(spec), **self.says)

    def release(self, ref: HostRef) -> None:
        self.releases_asked += 1
        if self.releases_throttled:
            self.releases_throttled -= 1
            message = "asked too often"
            raise Throttled(message, self.rest)
        super().release(ref)


@pytest.fixture
def plane(sessions, listen):
    return SmallPlane(sessions, listen(NUDGE), provider=FussyProvider())


def change(plane: SmallPlane, cluster_id: str, **spec) -> None:
    with unit_of_work(plane.sessions) as session:
        (group,) = clusters.groups(session, cluster_id)
        group.spec = {**group.spec, **spec}


def test_a_group_s_subnets_count_more_than_its_clusters_and_keep_their_order():
    other = {"SecurityGroupIds": [], "Subnets": ["subnet-c"]}
    assert sites({"VpcConfig": VPC}, {}) == (Site("subnet-a", ("sg-1", "sg-2")), Site("subnet-b", ("sg-1", "sg-2")))
    assert sites({"VpcConfig": VPC}, {"OverrideVpcConfig": other}) == (Site("subnet-c"),)
    assert sites({}, {}) == ()


def test_volumes_of_a_group_become_disks_and_file_systems_do_not():
    root = {"EbsVolumeConfig": {"RootVolume": True, "VolumeKmsKeyId": "key"}}
    data = {"EbsVolumeConfig": {"VolumeSizeInGB": 500}}
    lustre = {"FsxLustreConfig": {"DnsName": "fs", "MountName": "m"}}
    assert disks({"InstanceStorageConfigs": [root, lustre, data]}) == (
        Disk(0, kms_key="key", is_root=True),
        Disk(500, mount="/opt/sagemaker"),
    )
    assert disks({}) == ()


def test_a_host_is_asked_for_as_its_group_says_and_noted_as_it_came(plane):
    cluster_id = plane.cluster(1, is_continuous=True, settings={"VpcConfig": VPC})
    change(plane, cluster_id, ThreadsPerCore=1, InstanceStorageConfigs=[{"EbsVolumeConfig": {"VolumeSizeInGB": 7}}])
    plane.run(2)
    (asked,) = plane.provider.asked
    assert (asked.sites, asked.disks, asked.threads_per_core) == (
        sites({"VpcConfig": VPC}, {}),
        (Disk(7, mount="/opt/sagemaker"),),
        1,
    )
    (node,) = plane.nodes(cluster_id)
    assert (node.zone, node.capacity_type, asked.market) == (None, CapacityType.ON_DEMAND, Market.ON_DEMAND)


def test_a_launch_that_is_throttled_is_no_failure_of_a_classic_cluster_and_waits_as_long_as_is_said(plane):
    plane.provider.troubles.append(Throttled("asked too often", timedelta(seconds=20)))
    cluster_id = plane.cluster(1)
    plane.run(18)
    assert len(plane.provider.asked) == 1
    plane.run(20)
    assert plane.states()["cluster"] == ["in_service"]
    (node,) = plane.nodes(cluster_id)
    assert node.message is None
    with unit_of_work(plane.sessions) as session:
        assert session.get_one(Cluster, cluster_id).failure_message is None


def test_a_release_that_is_throttled_goes_on_and_ends_with_the_host(plane):
    cluster_id = plane.serving(1)
    plane.provider.releases_throttled = 3
    plane.delete_cluster(cluster_id)
    plane.run(30)
    assert plane.provider.hosts() == ()
    assert plane.states()["node"] == []


def test_a_release_that_is_throttled_waits_as_long_as_the_provider_says(plane):
    cluster_id = plane.serving(1)
    plane.provider.releases_throttled, plane.provider.rest = 1, timedelta(seconds=20)
    plane.delete_cluster(cluster_id)
    plane.run_until(lambda: plane.provider.releases_asked == 1)
    plane.run(18)
    assert plane.provider.releases_asked == 1
    plane.run(10)
    assert plane.provider.hosts() == ()


def test_a_host_whose_launch_was_under_way_when_another_type_was_wished_for_is_noted_as_what_it_is(plane):
    def another_type() -> None:
        with unit_of_work(plane.sessions) as session:
            (node,) = nodes.of_cluster(session, cluster_id)
            locked = nodes.get(session, node.id, lock=True)
            settle_other_type(session, locked, "ml.m5.xlarge", why="It costs less.", is_at_once=True, now=plane.clock.at)

    plane.provider.meanwhile = another_type
    cluster_id = plane.cluster(1, is_continuous=True)
    plane.run(2)
    (node,) = plane.nodes(cluster_id)
    assert (node.instance_type, node.state is NodeState.REQUESTED) == (plane.provider.asked[0].instance_type, False)


def test_what_a_provider_does_not_say_of_a_host_stays_as_it_was_noted(plane):
    def placed() -> None:
        with unit_of_work(plane.sessions) as session:
            (node,) = nodes.of_cluster(session, cluster_id)
            node.zone = "us-east-1b"

    plane.provider.meanwhile, plane.provider.says = placed, {"zone": None, "instance_type": None}
    cluster_id = plane.cluster(1, is_continuous=True)
    plane.run(2)
    (node,) = plane.nodes(cluster_id)
    assert (node.zone, node.instance_type) == ("us-east-1b", plane.provider.asked[0].instance_type)


def test_a_classic_cluster_without_capacity_says_group_type_and_zone(plane):
    """R-6: the cause of a rollback names what was not to be had, and where."""
    why = "EC2 has no ml.c5.xlarge to be had in us-east-1b (InsufficientInstanceCapacity)."
    plane.provider.troubles.extend(NoCapacity(why) for _ in range(9))
    cluster_id = plane.cluster(1)
    plane.run(30)
    with unit_of_work(plane.sessions) as session:
        message = session.get_one(Cluster, cluster_id).failure_message
    assert message == f"Instance group workers cannot be provisioned with ml.c5.xlarge: {why}"
    assert plane.provider.hosts() == ()
