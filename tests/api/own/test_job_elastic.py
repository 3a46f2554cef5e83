"""The block ``elastic`` of a job file, and the command that resizes a job, through both doors."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from api.own import job_file
from models.errors import Invalid
from models.job.elastic import elastic_of

SMALLEST = {"name": "j", "cluster": "c1", "command": ["python", "train.py"], "working_dir": "/work"}


def elastic(**block: Any) -> dict[str, Any]:
    return SMALLEST | {"elastic": block}


def test_a_job_of_bounds_alone_may_have_every_size_between_them_and_wants_the_largest():
    job = job_file.read(elastic(min=1, max=4))
    assert (job.replicas, list(elastic_of(job.spec).sizes)) == (4, [1, 2, 3, 4])


@pytest.mark.parametrize(
    "block, sizes",
    [
        ({"min": 2, "max": 9, "step": 3}, [2, 5, 8]),
        ({"sizes": [8, 2, 4]}, [2, 4, 8]),
        ({"sizes": [2, 4, 8], "max": 8, "min": 2}, [2, 4, 8]),
    ],
)
def test_sizes_are_stepped_or_named(block: dict[str, Any], sizes: list[int]):
    job = job_file.read(elastic(**block))
    assert (job.replicas, list(elastic_of(job.spec).sizes)) == (sizes[-1], sizes)


def test_times_are_taken_as_numbers_and_as_words():
    policy = elastic_of(job_file.read(elastic(min=1, max=2, scaling_timeout="5m", snooze=3)).spec)
    seconds = [span.total_seconds() for span in (policy.scaling, policy.graceful, policy.faulty, policy.snooze)]
    assert seconds == [300, 600, 30, 3]


@pytest.mark.parametrize(
    "document, words",
    [
        (elastic(min=1, max=4, step=1, sizes=[1, 4]), ("'step' and 'sizes' exclude each other",)),
        (elastic(min=1, max=4, sizes=[2, 8]), ("elastic.sizes: 8 is above elastic.max, 4", "raise 'max'")),
        (elastic(min=2, max=4, sizes=[1, 4]), ("elastic.sizes: 1 is below elastic.min, 2",)),
        (elastic(min=5, max=4), ("elastic.min: 5 is above elastic.max, 4",)),
        (elastic(min=1), ("elastic.max: it is missing",)),
        (elastic(max=1), ("elastic.min: it is missing",)),
        (elastic(min=0, max=4), ("elastic.min",)),
        (elastic(min=1, max=4, step=0), ("elastic.step",)),
        (elastic(min=1, max=4, sizes=[]), ("elastic.sizes",)),
        (elastic(min=1, max=4, snooze="soon"), ("elastic.snooze: 'soon' is no duration",)),
        (elastic(min=1, max=4, snooze=-1), ("elastic.snooze",)),
        (elastic(min=1, maks=4), ("no key 'elastic.maks'", "did you mean 'elastic.max'")),
        (SMALLEST | {"elastic": 4}, ("elastic: a block of keys is expected",)),
        (elastic(sizes=[2, 4]) | {"replicas": 3}, ("replicas: 3 is none of the job's sizes, which are 2, 4",)),
        (elastic(min=2, max=4) | {"replicas": 1}, ("replicas: 1 is none",)),
        (SMALLEST, ("replicas: Field required",)),
    ],
)
def test_a_contradiction_is_refused_with_the_key_and_the_remedy(document: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(Invalid) as refused:
        job_file.read(document)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_job_is_resized_through_either_door(ours: Any, rest: Any, cluster: str):
    job = ours.submit_job(Name="e", Cluster=cluster, Command=["true"], WorkingDir="/w", Elastic={"Min": 1, "Max": 4})["JobId"]
    assert ours.describe_job(JobId=job)["WishedReplicas"] == 4
    assert rest("POST", f"/v1/jobs/{job}/resize", json={"Replicas": 2}).json()["WishedReplicas"] == 2
    assert ours.resize_job(JobId=job, Replicas=3)["WishedReplicas"] == 3
    events = [event["Name"] for event in ours.list_job_events(JobId=job)["Events"]]
    assert events.count("resize requested") == 2
    ours.resize_job(JobId=job, Replicas=3)
    assert [event["Name"] for event in ours.list_job_events(JobId=job)["Events"]] == events, "asking again changes nothing"


def test_a_size_that_the_job_does_not_have_is_refused(ours: Any, cluster: str):
    job = ours.submit_job(Name="e", Cluster=cluster, Command=["true"], WorkingDir="/w", Elastic={"Sizes": [2, 4]})["JobId"]
    with pytest.raises(ClientError, match="3 is none of the job's sizes, which are 2, 4"):
        ours.resize_job(JobId=job, Replicas=3)
    rigid = ours.submit_job(Name="r", Cluster=cluster, Command=["true"], WorkingDir="/w", Replicas=2)["JobId"]
    with pytest.raises(ClientError, match="has one size, 2 nodes"):
        ours.resize_job(JobId=rigid, Replicas=2)
    ours.stop_job(JobId=job)
    with pytest.raises(ClientError, match=r"[Ss]topping"):
        ours.resize_job(JobId=job, Replicas=2)
    with pytest.raises(ClientError, match="nosuch"):
        ours.resize_job(JobId="nosuch", Replicas=2)
