"""TieredStorageConfig through an unmodified boto3 client: what is taken, echoed and acted on, and that nothing else moves for it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from sqlalchemy import select

from models.cluster.table import Cluster
from models.events import Event
from models.job.changes import settle_processes
from models.job.table import Job, JobProcess
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.serving import group

ON = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 40}


@pytest.fixture(params=[False, True], ids=["classic", "continuous"])
def cluster(sagemaker: Any, sessions: Sessions, request: pytest.FixtureRequest) -> str:
    """In service, with one node, on which a job runs."""
    given = {"NodeProvisioningMode": "Continuous"} if request.param else {}
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("workers", 1)], **given)
    as_it_comes_into_service(sessions, "c1")
    with unit_of_work(sessions) as session:
        of = session.scalars(select(Cluster)).one()
        job = rows.job(session, of, replicas=1)
        settle_processes(session, job, [(rows.node(session, of).id, 0)], now=rows.NOW)
    return "c1"


def of_jobs(sessions: Sessions) -> list[tuple[Any, ...]]:
    with sessions() as session:
        found = session.execute(select(Job.state, Job.version, Job.generation, JobProcess.state).join(JobProcess)).all()
        return [tuple(row) for row in found]


@pytest.mark.parametrize(
    "config", [ON, {"Mode": "Enable"}, {"Mode": "Disable"}, {"Mode": "Disable", "InstanceMemoryAllocationPercentage": 20}]
)
def test_an_update_of_the_tier_alone_is_taken_echoed_and_disturbs_no_job(
    sagemaker: Any, cluster: str, sessions: Sessions, config: dict[str, Any]
):
    before = of_jobs(sessions)
    arn = sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig=config)["ClusterArn"]
    described = sagemaker.describe_cluster(ClusterName=arn)
    assert described["TieredStorageConfig"] == config
    assert [one["TargetCount"] for one in described["InstanceGroups"]] == [1]
    assert of_jobs(sessions) == before


def test_an_update_that_says_the_same_again_is_no_event(sagemaker: Any, cluster: str, sessions: Sessions):
    sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig=ON)
    as_it_comes_into_service(sessions, cluster) if sagemaker.describe_cluster(ClusterName=cluster)[
        "ClusterStatus"
    ] != "InService" else None
    sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig=ON)
    with sessions() as session:
        told = session.scalars(select(Event.description).where(Event.name == "memory tier switched")).all()
    assert told == ["The memory tier of cluster c1 takes 40 % of each node's memory."]


@pytest.mark.parametrize("percent", [0, 1, 19])
def test_less_than_a_fifth_of_the_memory_is_refused_in_words(sagemaker: Any, cluster: str, percent: int):
    with pytest.raises(ClientError, match="InstanceMemoryAllocationPercentage must be between 20 and 100") as refused:
        sagemaker.update_cluster(
            ClusterName=cluster, TieredStorageConfig={"Mode": "Enable", "InstanceMemoryAllocationPercentage": percent}
        )
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert "TieredStorageConfig" not in sagemaker.describe_cluster(ClusterName=cluster)


def test_a_cluster_can_be_created_with_its_tier_on(sagemaker: Any):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], TieredStorageConfig=ON)
    assert sagemaker.describe_cluster(ClusterName="c1")["TieredStorageConfig"] == ON
