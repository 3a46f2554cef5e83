"""What no client would send, hand-signed: each a precise 4xx that names the member, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from api.aws.schema import sagemaker as model
from api.aws.support import paths
from api.aws.table.refusals import REFUSALS
from api.aws.table.sagemaker import SAGEMAKER
from api.deps import MOST_BYTES
from models.cluster.table import Cluster, InstanceGroup, Tag
from models.events import About, Event
from models.session import Sessions
from tests.api.serving import TOKEN, Server, group

CREATE = {"ClusterName": "c1", "InstanceGroups": [group()]}
CONTINUOUS = {"NodeProvisioningMode": "Continuous"}
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k"}}
TOO_MANY = {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 101}}}
VOLUME = {"EbsVolumeConfig": {"VolumeSizeInGB": 1}}
KNOWN = frozenset(paths(model().operation_model("CreateCluster").input_shape))


@pytest.fixture(autouse=True)
def nothing_is_written(server: Server, sessions: Sessions) -> Iterator[None]:
    """Every test of this file ends with a database as empty as it began, but for the log of calls."""
    yield
    with sessions() as session:
        for table in (Cluster, InstanceGroup, Tag):
            assert session.scalar(select(func.count()).select_from(table)) == 0, f"something was written to {table.__tablename__}"
        assert session.scalars(select(Event.name).where(Event.about != About.CALL)).all() == []


def told(response: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message, as every AWS SDK would read them."""
    body = response.json()
    assert response.headers["x-amzn-requestid"]
    assert response.headers["x-amzn-errortype"] == body["__type"]
    return response.status_code, body["__type"], body["message"]


def changed(**members: Any) -> dict[str, Any]:
    return {"ClusterName": "c1", "InstanceGroups": [group(**members)]}


def flexible(*types: str) -> dict[str, Any]:
    wish = changed(InstanceRequirements={"InstanceTypes": list(types)})
    del wish["InstanceGroups"][0]["InstanceType"]
    return wish


def has(path: str) -> bool:
    """Whether the installed service model has this member of CreateCluster."""
    return path in KNOWN


class TestSignatures:
    def test_the_hand_made_signature_is_right_to_begin_with(self, server: Server):
        assert server.call("ListClusters", {}).json() == {"ClusterSummaries": []}

    @pytest.mark.parametrize("service", ["sagemaker", "everstep"])
    @pytest.mark.parametrize("token", [None, "a-session-token"])
    def test_both_scopes_and_a_signed_session_token_are_accepted(self, server: Server, service, token):
        assert server.call("ListClusters", {}, service=service, session_token=token, region="eu-west-1").status_code == 200

    @pytest.mark.parametrize(
        "odd, code, text",
        [
            ({"secret": "another"}, "InvalidSignatureException", "does not match the signature you provided"),
            ({"sent_instead": b'{"MaxResults":1}'}, "InvalidSignatureException", "does not match"),
            ({"headers": {"x-amz-target": "SageMaker.DeleteCluster"}}, "InvalidSignatureException", "does not match"),
            ({"headers": {"host": "elsewhere"}}, "InvalidSignatureException", "does not match"),
            ({"service": "s3"}, "InvalidSignatureException", "scoped to correct service: 'sagemaker' or 'everstep', not 's3'"),
            ({"scope_date": "20200101"}, "InvalidSignatureException", "'20200101' != "),
            ({"key_id": "AKIANOBODY"}, "UnrecognizedClientException", "security token included in the request is invalid"),
            ({"headers": {"authorization": None}}, "MissingAuthenticationTokenException", "Missing Authentication Token"),
        ],
    )
    def test_whoever_cannot_prove_who_they_are_gets_403(self, server: Server, odd, code, text):
        status, told_code, message = told(server.call("CreateCluster", CREATE, **odd))
        assert (status, told_code) == (403, code)
        assert text in message

    @pytest.mark.parametrize(
        "header, text",
        [
            ({"authorization": "AWS4-HMAC-SHA256 nonsense"}, "requires 'Credential', 'SignedHeaders' and 'Signature'"),
            ({"authorization": f"Bearer {TOKEN}"}, "must use AWS4-HMAC-SHA256"),
            ({"x-amz-date": None}, "'X-Amz-Date'"),
            ({"x-amz-date": "yesterday"}, "Got 'yesterday'"),
            ({"x-amz-security-token": "smuggled"}, "'x-amz-security-token' must be a 'SignedHeader'"),
            ({"x-amz-content-sha256": "0" * 64}, "'x-amz-content-sha256' must be a 'SignedHeader'"),
            ({"content-type": None}, "'content-type' is signed but was not sent"),
        ],
    )
    def test_a_signature_that_cannot_be_read_is_told_what_is_missing(self, server: Server, header, text):
        status, code, message = told(server.call("CreateCluster", CREATE, headers=header))
        assert (status, code) == (400, "IncompleteSignatureException")
        assert text in message

    @pytest.mark.parametrize("minutes, text", [(-16, "Signature expired: "), (16, "Signature not yet current: ")])
    def test_a_date_that_is_far_off_is_refused(self, server: Server, minutes, text):
        at = datetime.now(UTC) + timedelta(minutes=minutes)
        status, code, message = told(server.call("CreateCluster", CREATE, at=at))
        assert (status, code) == (403, "InvalidSignatureException")
        assert message.startswith(text)
        assert "15 min." in message

    @pytest.mark.parametrize("minutes", [-14, 14])
    def test_a_clock_that_is_a_little_off_is_no_matter(self, server: Server, minutes):
        assert server.call("ListClusters", {}, at=datetime.now(UTC) + timedelta(minutes=minutes)).status_code == 200


class TestTargets:
    @pytest.mark.parametrize("operation", sorted(set(model().operation_names) - set(SAGEMAKER))[::5])
    def test_every_other_operation_of_the_service_says_that_it_is_not_supported(self, server: Server, operation):
        status, code, message = told(server.call(operation, {}))
        assert (status, code) == (400, "UnknownOperationException")
        assert message.startswith(f"{operation} is not supported by Everstep")

    @pytest.mark.parametrize("operation", sorted(set(REFUSALS) & set(model().operation_names))[::3])
    def test_an_operation_of_the_family_that_is_refused_says_what_to_do_instead(self, server: Server, operation):
        assert told(server.call(operation, {"Odd": 1})) == (
            400,
            "UnknownOperationException",
            f"{operation} is not supported by Everstep. {REFUSALS[operation]}",
        )

    @pytest.mark.parametrize("operation", ["Nonsense", "createCluster", ""])
    def test_an_operation_that_no_model_has_is_unknown(self, server: Server, operation):
        status, code, message = told(server.call(operation, {}))
        assert (status, code) == (400, "UnknownOperationException")
        assert repr(operation) in message

    def test_a_target_of_another_service_is_unknown(self, server: Server):
        status, code, message = told(server.call("ListTables", {}, target_prefix="DynamoDB_20120810"))
        assert (status, code) == (400, "UnknownOperationException")
        assert "SageMaker.<operation>" in message

    def test_a_post_without_a_target_is_told_so(self, server: Server):
        status, code, _ = told(httpx.post(server.url, content=b"{}"))
        assert (status, code) == (403, "MissingAuthenticationTokenException")


class TestBodies:
    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"not json",
            b"[]",
            b'"text"',
            b"null",
            b'{"ClusterName": NaN}',
            b'{"ClusterName": "\xff"}',
            b'{"ClusterName": "a", "ClusterName": "b"}',
            b"[" * 100_000,
            b'{"MaxResults": ' + b"9" * 5000 + b"}",
        ],
    )
    def test_what_is_no_json_object_is_a_serialization_error(self, server: Server, body):
        for operation in ("CreateCluster", "ListClusters"):
            status, code, _ = told(server.call(operation, body))
            assert (status, code) == (400, "SerializationException")

    def test_an_empty_body_is_an_empty_object(self, server: Server):
        assert server.call("ListClusters", b"").json() == {"ClusterSummaries": []}

    def test_a_body_beyond_all_measure_is_refused_by_its_length(self, server: Server):
        status, code, _ = told(server.call("CreateCluster", b" " * (MOST_BYTES + 1)))
        assert (status, code) == (413, "RequestEntityTooLargeException")

    @pytest.mark.parametrize(
        "members, path",
        [
            (changed(count="2"), "instanceGroups.1.member.instanceCount"),
            (changed(count=True), "instanceGroups.1.member.instanceCount"),
            (changed(count=2.0), "instanceGroups.1.member.instanceCount"),
            (changed(count=2**31), "instanceGroups.1.member.instanceCount"),
            (changed(name=5), "instanceGroups.1.member.instanceGroupName"),
            (changed(LifeCycleConfig="x"), "instanceGroups.1.member.lifeCycleConfig"),
            ({"ClusterName": "c1", "InstanceGroups": {}}, "instanceGroups"),
            ({"ClusterName": "c1", "InstanceGroups": [None]}, "instanceGroups.1.member"),
            ({"ClusterName": ["c1"]}, "clusterName"),
        ],
    )
    def test_a_wrong_type_names_its_member(self, server: Server, members, path):
        status, code, message = told(server.call("CreateCluster", members))
        assert status == 400
        assert code in {"SerializationException", "ValidationException"}
        assert f"'{path}'" in message

    @pytest.mark.parametrize("value", ["soon", True, 1e300, "nan", {}, 10**400])
    def test_a_timestamp_is_a_time(self, server: Server, value):
        status, code, message = told(server.call("ListClusters", {"CreationTimeAfter": value}))
        assert (status, code) == (400, "SerializationException")
        assert "'creationTimeAfter'" in message

    @pytest.mark.parametrize("value", [0, 1704067200, 1704067200.25, "1704067200", "2024-01-01T00:00:00Z", "2024-01-01", -1])
    def test_a_timestamp_may_be_written_in_many_ways(self, server: Server, value):
        assert server.call("ListClusters", {"CreationTimeAfter": value}).status_code == 200

    @pytest.mark.parametrize("value", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", 253402300799.9999])
    @pytest.mark.parametrize("member", ["CreationTimeAfter", "CreationTimeBefore"])
    def test_the_first_and_the_last_moment_that_can_be_written_are_times(self, server: Server, member, value):
        assert server.call("ListClusters", {member: value}).status_code == 200


class TestConstraints:
    @pytest.mark.parametrize(
        "members, path, text",
        [
            ({}, "clusterName", "Member must not be null"),
            ({"ClusterName": None}, "clusterName", "Member must not be null"),
            ({"ClusterName": "-c"}, "clusterName", "Member must satisfy regular expression pattern: [a-zA-Z0-9](-*[a-zA-Z0-9])*"),
            ({"ClusterName": "c1\n"}, "clusterName", "regular expression pattern"),
            ({"ClusterName": "c" * 64}, "clusterName", "Member must have length less than or equal to 63"),
            ({"ClusterName": "c1", "InstanceGroups": []}, "instanceGroups", "length greater than or equal to 1"),
            (
                {"ClusterName": "c1", "InstanceGroups": [group(f"g{n}") for n in range(101)]},
                "instanceGroups",
                "length less than or equal to 100",
            ),
            (changed(count=6759), "instanceGroups.1.member.instanceCount", "value less than or equal to 6758"),
            (changed(count=-1), "instanceGroups.1.member.instanceCount", "value greater than or equal to 0"),
            (changed(InstanceType="ml.abacus"), "instanceGroups.1.member.instanceType", "enum value set: [ml.p4d.24xlarge, "),
            (changed(ThreadsPerCore=3), "instanceGroups.1.member.threadsPerCore", "value less than or equal to 2"),
            (changed(InstanceTypo=1), "instanceGroups.1.member.instanceTypo", "did you mean InstanceType?"),
            (
                changed(InstanceStorageConfigs=[{}]),
                "instanceGroups.1.member.instanceStorageConfigs.1.member",
                "exactly one of its members",
            ),
            (
                changed(KubernetesConfig={"Labels": {"not a label": "x"}}),
                "instanceGroups.1.member.kubernetesConfig.labels",
                "Map keys must satisfy constraint: [Member must satisfy regular expression",
            ),
            (
                changed(LifeCycleConfig={"SourceS3Uri": "s3://b/x", "OnCreate": "a\x00b"}),
                "instanceGroups.1.member.lifeCycleConfig.onCreate",
                "U+0000",
            ),
            (
                changed(LifeCycleConfig={"SourceS3Uri": "s3://b/x", "OnCreate": "a\ud800b"}),
                "instanceGroups.1.member.lifeCycleConfig.onCreate",
                "surrogates",
            ),
            ({"ClusterName": "c1", "Nonsense": 1}, "nonsense", "Member must be one that CreateClusterRequest has"),
        ],
    )
    def test_a_violated_constraint_is_told_in_aws_s_words(self, server: Server, members, path, text):
        status, code, message = told(server.call("CreateCluster", members))
        assert (status, code) == (400, "ValidationException")
        assert message.startswith("1 validation error detected: Value ")
        assert f" at '{path}' failed to satisfy constraint: " in message
        assert text in message

    def test_all_violations_are_told_at_once(self, server: Server):
        wrong = {"ClusterName": "_", "InstanceGroups": [group("_", count=9999)], "NodeRecovery": "Never"}
        _, _, message = told(server.call("CreateCluster", wrong))
        assert message.startswith("4 validation errors detected: ")
        for path in (
            "clusterName",
            "instanceGroups.1.member.instanceGroupName",
            "instanceGroups.1.member.instanceCount",
            "nodeRecovery",
        ):
            assert f"'{path}'" in message

    @pytest.mark.parametrize("size", [0, 101])
    def test_a_page_has_bounds(self, server: Server, size):
        _, code, message = told(server.call("ListClusters", {"MaxResults": size}))
        assert code == "ValidationException"
        assert "'maxResults'" in message


class TestContradictions:
    """What the model allows and nothing could be made of is refused by name."""

    def test_a_member_that_nothing_would_act_on_is_refused_by_name(self, server: Server):
        plan = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p1"
        status, code, message = told(server.call("CreateCluster", changed(TrainingPlanArn=plan)))
        assert (status, code) == (400, "ValidationException")
        assert (
            "'instanceGroups.1.member.trainingPlanArn' failed to satisfy constraint: Member is not supported by this control plane"
            in message
        )

    @pytest.mark.parametrize(
        "members, text",
        [
            ({"ClusterName": "c1"}, "at least one instance group"),
            ({"ClusterName": "c1", "InstanceGroups": [group("a"), group("a")]}, "names 'a' twice"),
            (CREATE | {"RestrictedInstanceGroups": [group()]}, "names 'workers' twice"),
            (changed(LifeCycleConfig={"OnCreate": "x.sh"}), "needs both SourceS3Uri and a script"),
            (changed(LifeCycleConfig={"SourceS3Uri": "s3://b/x"}), "needs both SourceS3Uri and a script"),
            (changed(CapacityRequirements={"Spot": {}, "OnDemand": {}}), "one of Spot and OnDemand"),
            (changed(MinInstanceCount=1), "needs a cluster whose NodeProvisioningMode is Continuous"),
            (changed(count=1, MinInstanceCount=2) | CONTINUOUS, "must not exceed its InstanceCount"),
            (
                changed(InstanceRequirements={"InstanceTypes": ["ml.c5.large"]}),
                "exactly one of InstanceType and InstanceRequirements",
            ),
            (
                {"ClusterName": "c1", "InstanceGroups": [{k: v for k, v in group().items() if k != "InstanceType"}]},
                "exactly one of InstanceType and InstanceRequirements",
            ),
            (
                flexible("ml.c5.large"),
                "InstanceRequirements of instance group 'workers' needs a cluster whose NodeProvisioningMode",
            ),
            (flexible("ml.c5.large", "ml.c5.large") | CONTINUOUS, "names a type twice"),
            (changed(InstanceStorageConfigs=[{"EbsVolumeConfig": {"RootVolume": True}}]), "takes a VolumeKmsKeyId"),
            (changed(InstanceStorageConfigs=[VOLUME, VOLUME]), "one root volume and one secondary"),
            (changed(OverrideVpcConfig=VPC), "needs a VpcConfig of the cluster to override"),
            (changed(ImageId="ami-12345678"), "ImageId 'ami-12345678' of instance group 'workers' does not exist"),
        ],
    )
    def test_a_group_that_contradicts_itself_is_refused(self, server: Server, members, text):
        status, code, message = told(server.call("CreateCluster", members))
        assert (status, code) == (400, "ValidationException")
        assert text in message

    @pytest.mark.parametrize(
        "config, text",
        [
            ({"ImageReleaseVersion": "99.2.3"}, "ImageReleaseVersion '99.2.3' of instance group 'workers' does not exist"),
            ({"ScheduledUpdateConfig": {"ScheduleExpression": "rate(1 day)"}}, "is no cron(minute hour day-of-month month"),
            ({"ScheduledUpdateConfig": {"ScheduleExpression": "cron(0 0 1 1 ? 2020)"}}, "names no time that is still to come"),
            (
                {"ScheduledUpdateConfig": {"ScheduleExpression": "cron(0 2 ? * SUN *)", "DeploymentConfig": TOO_MANY}},
                "ScheduledUpdateConfig.DeploymentConfig of instance group 'workers'.RollingUpdatePolicy.MaximumBatchSize.Value is 101",
            ),
            (
                {"AutoPatchConfig": {"PatchingStrategy": "WhenIdle", "DrainPolicy": {"OnDrainTimeout": "Skip"}}},
                "DrainPolicy of instance group 'workers' needs PatchingStrategy DrainFirst",
            ),
            (
                {"AutoPatchConfig": {"PatchingStrategy": "DrainFirst", "IdleWaitWindowInSeconds": 3600}},
                "IdleWaitWindowInSeconds of instance group 'workers' needs PatchingStrategy WhenIdle or WhenAllIdle",
            ),
        ],
    )
    def test_updates_that_could_not_come_are_refused(self, server: Server, config, text):
        (member,) = config
        if not has(f"InstanceGroups[].{member}"):
            pytest.skip("the installed service model does not have it")
        if "DrainPolicy" in str(config) and not has("InstanceGroups[].AutoPatchConfig.DrainPolicy"):
            pytest.skip("the installed service model does not have it")
        status, code, message = told(server.call("CreateCluster", changed(**config)))
        assert (status, code) == (400, "ValidationException")
        assert text in message

    @pytest.mark.parametrize(
        "members, text",
        [
            ({"Orchestrator": {}}, "exactly one of Eks and Slurm"),
            ({"Orchestrator": {"Eks": EKS["Eks"], "Slurm": {}}}, "exactly one of Eks and Slurm"),
            ({"Orchestrator": EKS}, "VpcConfig is required"),
            ({"Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}}} | CONTINUOUS, "not supported with NodeProvisioningMode"),
            ({"Orchestrator": {"Slurm": {}}} | CONTINUOUS, "SlurmConfig of instance group 'workers' is missing"),
            (
                {"Orchestrator": EKS, "VpcConfig": VPC, "InstanceGroups": [group(SlurmConfig={"NodeType": "Login"})]},
                "SlurmConfig of instance group 'workers' does not go with Orchestrator.Eks",
            ),
            (
                {"InstanceGroups": [group(name, 1, SlurmConfig={"NodeType": "Controller"}) for name in "ab"]},
                "NodeType Controller is for one instance group; it is that of a, b",
            ),
            (
                {"InstanceGroups": [group(count=2, SlurmConfig={"NodeType": "Controller"})]},
                "InstanceCount of instance group 'workers' must be 1",
            ),
            ({"AutoScaling": {"Mode": "Enable"}}, "needs NodeProvisioningMode Continuous, Orchestrator.Eks, ClusterRole"),
            ({"TieredStorageConfig": {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 19}}, "must be between 20 and 100"),
            (
                {
                    "RestrictedInstanceGroupsConfig": {
                        "SharedEnvironmentConfig": {
                            "FSxLustreDeletionPolicy": "Keep",
                            "FSxLustreConfig": {"SizeInGiB": 1200, "PerUnitStorageThroughput": 125},
                        }
                    }
                },
                "needs a group in RestrictedInstanceGroups",
            ),
        ],
    )
    def test_a_cluster_that_contradicts_itself_is_refused(self, server: Server, members, text):
        if not all(has(member) for member in members) or (
            "Slurm" in members.get("Orchestrator", {}) and not has("Orchestrator.Slurm")
        ):
            pytest.skip("the installed service model does not have it")
        status, code, message = told(server.call("CreateCluster", CREATE | members))
        assert (status, code) == (400, "ValidationException")
        assert text in message


def test_braces_in_a_refused_value_are_only_text(server: Server):
    _, code, message = told(server.call("DescribeCluster", {"ClusterName": "{0}{name}"}))
    assert code == "ValidationException"
    assert "{0}{name}" in message


def test_answers_are_json_even_to_a_get(server: Server):
    response = httpx.get(server.url)
    assert response.status_code in {404, 405}
    assert json.loads(response.content)["status"] == response.status_code
