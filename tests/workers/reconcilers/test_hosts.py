"""What the provider is asked for, and what is noted of its answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from models.cluster import queries as clusters
from models.cluster.table import Cluster
from models.node.states import CapacityType
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane
from workers.providers.base import Disk, HostRef, HostSeen, HostSpec, Market, NoCapacity, ProviderError, Site, Throttled
from workers.providers.simulated import SimulatedProvider
from workers.reconcilers.host_spec import disks, sites

VPC = {"SecurityGroupIds": ["sg-1", "sg-2"], "Subnets": ["subnet-a", "subnet-b"]}


@dataclass
class FussyProvider(SimulatedProvider):
    """``troubles`` are what the next launches come to; ``asked`` when and for what they were."""

    troubles: deque[ProviderError] = field(default_factory=deque)
    asked: list[HostSpec] = field(default_factory=list)
    releases_throttled: int = 0

    def launch(self, spec: HostSpec) -> HostSeen:
        self.asked.append(spec)
        if self.troubles:
            raise self.troubles.popleft()
        return super().launch(spec)

    def release(self, ref: HostRef) -> None:
        if self.releases_throttled:
            self.releases_throttled -= 1
            message = "asked too often"
            raise Throttled(message, timedelta(seconds=1))
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
