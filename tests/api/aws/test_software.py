"""Updates of a cluster's software, asked for through boto3 and carried out by the workers: real rows, a simulated provider."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import everstep
from everstep.protocol import VERSION
from models.clock import WallClock
from models.cluster.states import ClusterState
from models.events import Event
from models.image.changes import request_end_of_life, request_release
from models.job.states import JobState
from models.node.states import NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from tests.api.installed import needs
from tests.api.serving import KEY_ID, SECRET, Server, group
from tests.workers.small_plane import SmallPlane, TestClock
from workers.patches import start_due

NEWER = "0.2.0"
ONE_BY_ONE = {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}}}
ALARM = {"AutoRollbackConfiguration": [{"AlarmName": "errors"}]}


@dataclass
class Stage:
    """A cluster in service, of two nodes and a head on our own release, and a newer one that is known."""

    plane: SmallPlane
    sagemaker: Any
    ours: Any
    cluster_id: str

    def group(self, name: str = "workers") -> dict[str, Any]:
        groups = self.sagemaker.describe_cluster(ClusterName="c1")["InstanceGroups"]
        return next(one for one in groups if one["InstanceGroupName"] == name)

    def cluster(self) -> dict[str, Any]:
        return self.sagemaker.describe_cluster(ClusterName="c1")

    def images(self) -> list[str]:
        return sorted(node.image or "" for node in self.plane.nodes(self.cluster_id) if node.is_wanted)

    def update(self, **members: Any) -> None:
        self.catch_up()
        self.sagemaker.update_cluster_software(ClusterName="c1", **members)

    def catch_up(self) -> None:
        """The server tells the wall's time, and so do the rows that it wants looked at: a plane that is behind would not find them due."""
        behind = WallClock().now() - self.plane.clock.at
        if behind > timedelta(0):
            self.plane.run(behind.total_seconds() + 5, every=2.5)

    def until_in_service(self, seconds: float = 300) -> None:
        self.plane.run_until(lambda: self.plane.cluster_state(self.cluster_id) is ClusterState.IN_SERVICE, seconds)

    def settle_alarm(self, state: str) -> None:
        self.ours.set_alarm_state(AlarmName="errors", State=state, Reason="5xx above 1 %")


@pytest.fixture
def stage(server: Server, sessions, listen, sagemaker, monkeypatch) -> Stage:
    needs("ListClusterOperations")  # as old as the members that tell of releases
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    ours = everstep.client("everstep", endpoint_url=server.url)
    plane = SmallPlane(sessions, listen(NUDGE), clock=TestClock(WallClock().now()))
    sagemaker.create_cluster(
        ClusterName="c1", InstanceGroups=[group("workers", 2), group("head", 1)], NodeProvisioningMode="Continuous"
    )
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * 3 and plane.states()["group"] == ["in_service"] * 2)
    ours.register_image_release(Version=NEWER)
    return Stage(plane, sagemaker, ours, _only(plane))


def _only(plane: SmallPlane) -> str:
    with unit_of_work(plane.sessions) as session:
        return session.query(Event.cluster_id).filter(Event.cluster_id.is_not(None)).first()[0]


def test_every_group_goes_to_the_newest_release_and_its_nodes_keep_their_ids(stage):
    before = {node.instance_id: node.logical_id for node in stage.plane.nodes(stage.cluster_id)}
    assert (stage.group()["CurrentImageReleaseVersion"], stage.group()["ImageVersionStatus"]) == (VERSION, "UpdateAvailable")
    assert stage.sagemaker.list_clusters()["ClusterSummaries"][0]["ImageVersionStatus"] == "UpdateAvailable"
    stage.update()
    asked = stage.group()
    assert (stage.cluster()["ClusterStatus"], asked["Status"], asked["SoftwareUpdateStatus"]) == (
        "SystemUpdating",
        "SystemUpdating",
        "Pending",
    )
    assert (asked["CurrentImageReleaseVersion"], asked["DesiredImageReleaseVersion"]) == (VERSION, NEWER)
    assert asked["TargetStateCount"] == 0
    stage.until_in_service()
    assert stage.images() == [NEWER] * 3
    assert {node.instance_id: node.logical_id for node in stage.plane.nodes(stage.cluster_id)} == before
    done = stage.group()
    assert (done["SoftwareUpdateStatus"], done["Status"], done["ImageVersionStatus"]) == ("Succeeded", "InService", "UpToDate")
    assert done["CurrentImageReleaseVersion"] == done["DesiredImageReleaseVersion"] == NEWER
    assert "TargetStateCount" not in done
    node = stage.sagemaker.list_cluster_nodes(ClusterName="c1")["ClusterNodeSummaries"][0]
    assert (node["CurrentImageReleaseVersion"], node["ImageVersionStatus"]) == (NEWER, "UpToDate")
    assert node["LastSoftwareUpdateTime"] > node["LaunchTime"]
    shown = stage.sagemaker.describe_cluster_node(ClusterName="c1", NodeId=node["InstanceId"])["NodeDetails"]
    assert (shown["CurrentImageId"], shown["DesiredImageReleaseVersion"]) == ("default", NEWER)


def test_where_every_node_runs_the_release_already_nothing_is_started(stage):
    events = stage.sagemaker.list_cluster_events(ClusterName="c1")["Events"]
    stage.update(InstanceGroups=[{"InstanceGroupName": "workers", "ImageReleaseVersion": VERSION}])
    assert stage.cluster()["ClusterStatus"] == "InService"
    assert stage.sagemaker.list_cluster_events(ClusterName="c1")["Events"] == events


def test_batches_follow_each_other_at_their_interval_and_other_groups_stay_as_they_are(stage):
    deployment = ONE_BY_ONE | {"WaitIntervalInSeconds": 30}
    stage.update(InstanceGroups=[{"InstanceGroupName": "workers"}], DeploymentConfig=deployment)
    assert stage.group("head")["Status"] == "InService"
    began, most_out = stage.plane.clock.at, 0
    shown: list[int] = []
    while stage.plane.cluster_state(stage.cluster_id) is ClusterState.SYSTEM_UPDATING:
        stage.plane.run(1)
        out = [node for node in stage.plane.nodes(stage.cluster_id) if node.state is not NodeState.READY]
        most_out = max(most_out, len(out))
        shown.append(stage.group().get("TargetStateCount", 2))
        through = [node for node in stage.plane.nodes(stage.cluster_id) if node.state is NodeState.READY and node.image == NEWER]
        assert shown[-1] == len(through)
        assert stage.plane.clock.at - began < timedelta(minutes=5)
    assert most_out == 1
    assert shown == sorted(shown), "nodes that have come to the release do not leave it again"
    assert timedelta(seconds=30) <= stage.plane.clock.at - began < timedelta(seconds=90)
    assert stage.images() == [VERSION, NEWER, NEWER]
    assert stage.group("head")["ImageVersionStatus"] == "UpdateAvailable"


def test_a_node_that_fails_on_the_release_takes_the_group_back_and_the_cluster_says_why(stage):
    stage.plane.bad_images[NEWER] = 3
    stage.update(InstanceGroups=[{"InstanceGroupName": "workers"}], DeploymentConfig=ONE_BY_ONE)
    stage.until_in_service()
    assert stage.images() == [VERSION] * 3
    told = stage.group()
    assert (told["SoftwareUpdateStatus"], told["Status"]) == ("RollbackComplete", "InService")
    assert "exit code 3" in stage.cluster()["FailureMessage"]
    failures = [one for one in stage.sagemaker.list_cluster_events(ClusterName="c1")["Events"] if one["EventLevel"] == "Error"]
    assert any("exit code 3" in one["Description"] for one in failures)


def test_an_alarm_that_rings_takes_the_update_back_and_one_that_rings_before_refuses_it(stage):
    stage.settle_alarm("OK")
    stage.update(InstanceGroups=[{"InstanceGroupName": "workers"}], DeploymentConfig=ONE_BY_ONE | ALARM)
    stage.plane.run_until(lambda: stage.group().get("TargetStateCount", 0) >= 1)
    stage.settle_alarm("ALARM")
    stage.plane.run_until(lambda: stage.group()["SoftwareUpdateStatus"] == "RollbackInProgress")
    turned = stage.group()
    assert (turned["CurrentImageReleaseVersion"], turned["DesiredImageReleaseVersion"]) == (NEWER, VERSION)
    stage.until_in_service()
    assert stage.images() == [VERSION] * 3
    assert "Alarm errors rings: 5xx above 1 %" in stage.cluster()["FailureMessage"]
    assert [(one["AlarmName"], one["State"]) for one in stage.ours.list_alarms()["Alarms"]] == [("errors", "ALARM")]
    with pytest.raises(stage.sagemaker.exceptions.ClientError, match="rings already"):
        stage.update(DeploymentConfig=ALARM)


def test_while_the_software_is_updated_the_cluster_is_busy(stage):
    stage.update()
    for refused in (
        lambda: stage.update(),
        lambda: stage.sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("workers", 3)]),
    ):
        with pytest.raises(stage.sagemaker.exceptions.ConflictException):
            refused()
    stage.sagemaker.delete_cluster(ClusterName="c1")
    stage.plane.run_until(lambda: not stage.plane.provider.hosts())


@pytest.mark.slow
def test_jobs_leave_a_node_before_it_is_changed_and_train_on(stage):
    job_id = stage.plane.training(stage.cluster_id, replicas=2, spares=1)
    stage.update(InstanceGroups=[{"InstanceGroupName": "workers"}], DeploymentConfig=ONE_BY_ONE)
    stage.until_in_service()
    assert stage.plane.job_state(job_id) is JobState.TRAINING
    assert stage.plane.job_row(job_id).restarts == 0
    assert stage.images() == [VERSION, NEWER, NEWER]


@pytest.mark.slow
def test_a_node_that_is_lost_on_the_way_is_replaced_on_the_new_release(stage):
    stage.update(InstanceGroups=[{"InstanceGroupName": "workers"}], DeploymentConfig=ONE_BY_ONE)
    stage.plane.run_until(lambda: "updating" in stage.plane.states()["node"])
    lost = next(
        node for node in stage.plane.nodes(stage.cluster_id) if node.state is NodeState.READY and node.group_name == "workers"
    )
    stage.plane.die(lost.instance_id)
    stage.until_in_service()
    assert stage.images() == [VERSION, NEWER, NEWER]
    assert stage.group()["SoftwareUpdateStatus"] == "Succeeded"


REFUSED = [
    ({"InstanceGroups": [{"InstanceGroupName": "x"}]}, "Instance group 'x' in InstanceGroups does not exist"),
    ({"InstanceGroups": [{"InstanceGroupName": "head"}] * 2}, "names 'head' twice"),
    (
        {"InstanceGroups": [{"InstanceGroupName": "head", "ImageReleaseVersion": "9.9.9"}]},
        "ImageReleaseVersion '9.9.9' for instance group 'head' does not exist",
    ),
    ({"ImageId": "ami-0123456789abcdef0"}, "ImageId 'ami-0123456789abcdef0' for instance group"),
    (
        {"DeploymentConfig": {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 101}}}},
        "a percentage is at most 100",
    ),
    ({"DeploymentConfig": {"AutoRollbackConfiguration": [{"AlarmName": "a"}] * 2}}, "names an alarm twice"),
]


def test_what_contradicts_itself_is_refused_by_name(stage):
    for members, told in REFUSED:
        with pytest.raises(stage.sagemaker.exceptions.ClientError, match="ValidationException") as refused:
            stage.update(**members)
        assert told in str(refused.value)
    assert stage.cluster()["ClusterStatus"] == "InService"


@pytest.mark.slow
def test_a_group_on_an_image_of_its_own_must_be_told_which_image_to_run(stage):
    stage.ours.register_image_release(Version="1.0.0", ImageId="ami-0123456789abcdef0")
    stage.update(InstanceGroups=[{"InstanceGroupName": "head"}], ImageId="ami-0123456789abcdef0")
    stage.until_in_service()
    assert stage.group("head")["CurrentImageId"] == "ami-0123456789abcdef0"
    with pytest.raises(stage.sagemaker.exceptions.ClientError, match="say which image it is to run with ImageId"):
        stage.update()
    stage.update(ImageId="default")
    stage.until_in_service()
    assert stage.images() == [NEWER] * 3


def test_a_release_that_nodes_must_leave_is_shown_so_and_takes_no_new_nodes(stage):
    with unit_of_work(stage.plane.sessions) as session:
        request_release(session, "0.3.0", image_id="default", is_security=True, now=stage.plane.clock.at)
    assert stage.group()["ImageVersionStatus"] == "SecurityUpdateRequired"
    with unit_of_work(stage.plane.sessions) as session:
        request_end_of_life(session, VERSION, now=stage.plane.clock.at)
    assert stage.group()["ImageVersionStatus"] == "EndOfLife"
    with pytest.raises(stage.sagemaker.exceptions.ClientError, match="has reached its end of life"):
        stage.sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group(ImageReleaseVersion=VERSION)])
    stage.sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("more", 0)])
    assert stage.group("more")["CurrentImageReleaseVersion"] == VERSION, "groups of a continuous cluster follow the oldest"
    stage.sagemaker.create_cluster(ClusterName="c3", InstanceGroups=[group()])
    (made,) = stage.sagemaker.describe_cluster(ClusterName="c3")["InstanceGroups"]
    assert made["CurrentImageReleaseVersion"] == "0.3.0"


def test_the_image_of_a_group_is_changed_by_an_update_of_its_software_alone(stage):
    with pytest.raises(stage.sagemaker.exceptions.ClientError, match="use UpdateClusterSoftware"):
        stage.sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("head", 1, ImageReleaseVersion=NEWER)])
    stage.sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("head", 1, ImageReleaseVersion=VERSION)])


def test_a_schedule_starts_the_update_when_it_is_due_and_a_newer_release_is_there(stage):
    schedule = {"ScheduleExpression": "cron(0/5 * * * ? *)", "DeploymentConfig": ONE_BY_ONE}
    stage.sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("head", 1, ScheduledUpdateConfig=schedule)])
    stage.plane.run(1)
    assert start_due(stage.plane) == 0
    stage.plane.clock.at += timedelta(minutes=5)
    stage.plane.agents()
    assert start_due(stage.plane) == 1
    assert start_due(stage.plane) == 0
    assert stage.group("head")["ActiveSoftwareUpdateConfig"] == ONE_BY_ONE
    stage.until_in_service()
    assert stage.images() == [VERSION, VERSION, NEWER]


def test_patching_when_idle_spares_the_nodes_that_train_and_keeps_new_work_away(stage):
    patch = {
        "PatchingStrategy": "WhenIdle",
        "IdleWaitWindowInSeconds": 3600,
        "PatchSchedule": {"NextPatchDate": stage.plane.clock.at},
    }
    stage.sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("workers", 2, AutoPatchConfig=patch)])
    stage.plane.run(1)
    spec = {"command": ["python", "train.py"], "instance_groups": ["workers"]}
    job_id = stage.plane.training(stage.cluster_id, replicas=1, spares=0, spec=spec)
    busy = stage.plane.members(job_id)[0].node_id
    assert start_due(stage.plane) == 1
    stage.plane.run_until(lambda: stage.images() == [VERSION, VERSION, NEWER])
    assert stage.plane.node(busy).held_for is not None
    stage.plane.run(3)
    stage.plane.clock.at += timedelta(hours=1)
    stage.plane.agents()  # before anybody looks: nobody has been silent for that hour
    stage.until_in_service()
    assert stage.plane.job_state(job_id) is JobState.TRAINING
    assert (stage.plane.node(busy).image, stage.plane.node(busy).held_for) == (VERSION, None)
    assert stage.group()["SoftwareUpdateStatus"] == "Succeeded"


def test_hosts_that_are_not_to_be_had_hold_no_update_up_and_start_from_the_new_release_later(stage):
    stage.plane.provider.capacity = 3
    stage.sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("workers", 3)])
    stage.plane.run(5)
    (missing,) = [node for node in stage.plane.nodes(stage.cluster_id) if node.state is NodeState.REQUESTED]
    stage.update(InstanceGroups=[{"InstanceGroupName": "workers"}])
    stage.until_in_service()
    assert stage.group()["SoftwareUpdateStatus"] == "Succeeded"
    stage.plane.provider.capacity = 4
    stage.plane.run_until(lambda: stage.plane.states()["node"] == ["ready"] * 4)
    assert stage.images() == [VERSION, NEWER, NEWER, NEWER]
    assert missing.logical_id in {node.logical_id for node in stage.plane.nodes(stage.cluster_id)}
