"""Own operations through both doors: a boto3 client of the shipped model, and REST. What one says, the other says."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError, ParamValidationError, WaiterError

from api.own.job_shapes import JobStatus
from api.own.kinds import Own
from api.own.table import OWN
from api.own.wire import word
from models.clock import WallClock
from models.job.changes import settle_job
from models.job.states import JobState
from models.job.table import Job, JobProcess
from models.session import Sessions, unit_of_work
from tests.api.own.conftest import Rest
from tests.api.serving import Server

FILE = {"Name": "gpt", "Cluster": "c1", "Command": ["python", "train.py"], "WorkingDir": "/work", "Replicas": 2}

UNTIL_NOW = frozenset({"Since", "Until"})
"""What a span ends with, where none is asked for: the moment of the call."""


def asks_for_nothing(own: Own) -> bool:
    fields = own.takes.model_fields.values()
    return own.method == "GET" and own.name != "GetGoodput" and not any(field.is_required() for field in fields)


def plain(value: Any) -> Any:
    """An answer without what the two doors write differently: nulls, and how times and numbers beyond JSON are spelt."""
    if isinstance(value, dict):
        found = {name: plain(item) for name, item in value.items() if item is not None and name != "ResponseMetadata"}
        return {name: item for name, item in found.items() if name != "Goodput"}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(microsecond=value.microsecond // 1000 * 1000)
    if isinstance(value, str) and value[4:5] == "-" and value.endswith("Z"):
        return plain(datetime.fromisoformat(value))
    return value


def refused(call: Any, **members: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as found:
        call(**members)
    assert found.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return found.value.response["Error"]["Code"], found.value.response["Error"]["Message"]


def test_both_doors_tell_the_same_of_a_job(ours: Any, rest: Rest, job: str):
    pairs = [
        (ours.describe_job(JobId=job), f"/v1/jobs/{job}"),
        (ours.list_jobs(Cluster="c1"), "/v1/jobs?cluster=c1"),
        (ours.list_job_steps(JobId=job), f"/v1/jobs/{job}/steps"),
        (ours.list_job_events(JobId=job), f"/v1/jobs/{job}/events"),
        (ours.get_job_logs(JobId=job, Lines=1), f"/v1/jobs/{job}/logs?lines=1"),
    ]
    for told, path in pairs:
        assert plain(told) == plain(rest("GET", path).json()), path
    described = pairs[0][0]
    assert math.isnan(described["LossLast"])
    assert described["Spec"]["env"] == {"LR": "0.1"}, "a job file's own keys are as somebody wrote them"
    assert described["StartedAt"].tzinfo is not None
    assert "EndedAt" not in described, "absent stays absent"


def test_both_doors_tell_the_same_when_nothing_in_particular_is_asked(ours: Any, rest: Rest, job: str):
    assert rest("GET", "/v1/jobs").status_code == 200, "from now on the key and the token have been used"
    for own in (own for own in OWN if asks_for_nothing(own)):
        told, also = (plain(one) for one in (getattr(ours, xform_name(own.name))(), rest("GET", own.path).json()))
        assert {name: told[name] for name in told if name not in UNTIL_NOW} == {
            name: also[name] for name in also if name not in UNTIL_NOW
        }, own.name


def test_both_doors_inject_list_and_clear_faults(ours: Any, rest: Rest, job: str, sessions: Sessions):
    with unit_of_work(sessions) as session:
        [process] = session.query(JobProcess).filter_by(job_id=job)
        process.pid = 4711
    fault = ours.inject_fault(Kind="hang-rank", Target=f"{job}/0", Seconds=5, ClientToken="t1")
    assert (fault["Status"], fault["JobId"], fault["Seconds"]) == ("Wanted", job, 5.0)
    again = rest("POST", "/v1/faults", json={"kind": "hang-rank", "target": f"{job}/0", "seconds": 5.0, "client_token": "t1"})
    assert again.json()["FaultId"] != fault["FaultId"], "a token belongs to who sent it: this is another key"
    assert ours.inject_fault(Kind="hang-rank", Target=f"{job}/0", Seconds=5, ClientToken="t1")["FaultId"] == fault["FaultId"]
    assert refused(ours.inject_fault, Kind="hang-rank", Target=f"{job}/0", Seconds=6, ClientToken="t1")[0] == "ValidationException"
    assert plain(ours.list_faults(JobId=job)) == plain(rest("GET", "/v1/faults", params={"job_id": job}).json())
    assert ours.clear_fault(FaultId=fault["FaultId"])["Status"] == "Ending"
    assert plain(ours.clear_fault(FaultId=fault["FaultId"])) == plain(rest("DELETE", f"/v1/faults/{fault['FaultId']}").json())
    assert refused(ours.inject_fault, Kind="spot-notice", Target="i-1")[0] == "ResourceNotFound"
    ours.inject_fault(Kind="kill-node", Target="i-00000000000000001")
    told = rest("GET", "/v1/clusters/c1/events?ResourceType=Instance").json()["Events"]
    assert [(one["InstanceId"], one["InstanceGroupName"]) for one in told if "kill-node" in one["Description"]] == [
        ("i-00000000000000001", "workers")
    ]


def test_goodput_is_told_of_a_job_and_summed_over_a_cluster(ours: Any, rest: Rest, job: str):
    submitted = ours.submit_job(**FILE)["JobId"]
    of_job, of_cluster = ours.get_goodput(JobId=job), ours.get_goodput(Cluster="c1")
    assert (of_job["Jobs"], of_job["ProductiveS"], of_job["Steps"]) == (1, 1.0, 2)
    assert (of_cluster["Jobs"], of_cluster["ProductiveS"]) == (2, 1.0)
    assert "Goodput" not in ours.get_goodput(JobId=submitted), "it has had no nodes yet"
    assert plain(ours.get_goodput(JobId=submitted)) == plain(rest("GET", f"/v1/goodput?job_id={submitted}").json())
    assert refused(ours.get_goodput)[0] == "ValidationException"
    assert refused(ours.get_goodput, JobId=job, Cluster="c1")[0] == "ValidationException"
    assert refused(ours.get_goodput, Cluster="c9")[0] == "ResourceNotFound"
    assert ours.get_goodput(Team="nobody")["Jobs"] == 0


def test_the_accounts_of_a_live_job_sum_to_its_accelerators_time_and_its_goodput_is_the_same_everywhere(ours: Any, job: str):
    told, shown = ours.get_goodput(JobId=job), ours.describe_job(JobId=job)
    assert sum(one["Seconds"] for one in told["Accounts"]) == pytest.approx(told["AllocatedS"], abs=1e-6)
    assert sum(one["Share"] for one in told["Accounts"]) == pytest.approx(1.0, abs=1e-4)
    assert {one["Account"] for one in told["Accounts"]} >= {"Productive", "CheckpointStall", "RedoneWork", "WaitingForCapacity"}
    assert "Goodput" in told
    assert told["Goodput"] == pytest.approx(shown["Goodput"], abs=0.05), "one moment later"
    listed = next(one for one in ours.list_jobs(Cluster="c1")["Jobs"] if one["JobId"] == job)
    assert listed["Goodput"] == pytest.approx(shown["Goodput"], abs=0.05)


def test_the_answer_to_a_submission_states_the_redundancy_and_warns_where_one_copy_is_all_there_is(ours: Any, cluster: str):
    alone = ours.submit_job(**FILE | {"Replicas": 1})["Redundancy"]
    assert alone["Copies"] == 1
    assert alone["Warning"].startswith("no redundancy")
    several = ours.submit_job(**FILE | {"Name": "several"})
    assert "Warning" not in several["Redundancy"]
    assert "replicate_every" in several["Redundancy"]["Description"]
    assert ours.describe_job(JobId=several["JobId"])["Redundancy"] == several["Redundancy"]


def test_what_is_submitted_at_one_door_is_stopped_at_the_other(ours: Any, rest: Rest, cluster: str):
    job_id = ours.submit_job(**FILE)["JobId"]
    assert rest("GET", f"/v1/jobs/{job_id}").json()["Spec"]["working_dir"] == "/work"
    assert rest("POST", f"/v1/jobs/{job_id}/stop").status_code == 202
    assert ours.stop_job(JobId=job_id)["IsStopping"] is True
    other = rest("POST", "/v1/jobs", json=FILE | {"Name": "other"}).json()["JobId"]
    assert plain(ours.stop_job(JobId=other)) == plain(rest("POST", f"/v1/jobs/{other}/stop", json={}).json())


def test_a_token_of_a_job_from_before_stragglers_could_be_replaced_still_means_that_job(
    rest: Rest, sessions: Sessions, cluster: str
):
    asked = FILE | {"ClientToken": "t1"}
    first = rest("POST", "/v1/jobs", json=asked).json()["JobId"]
    with unit_of_work(sessions) as session:
        job = session.get_one(Job, first)
        job.spec = {key: value for key, value in job.spec.items() if key != "stragglers"}
    assert rest("POST", "/v1/jobs", json=asked).json()["JobId"] == first
    assert rest("POST", "/v1/jobs", json=asked | {"Stragglers": "replace"}).status_code == 422


def test_a_repetition_with_the_same_token_is_the_same_job_at_either_door(ours: Any, rest: Rest, cluster: str):
    first = ours.submit_job(**FILE, ClientToken="t1")["JobId"]
    assert ours.submit_job(**FILE, ClientToken="t1")["JobId"] == first
    assert rest("POST", "/v1/jobs", json=FILE, headers={"Idempotency-Key": "t1"}).json()["JobId"] == first
    assert rest("POST", "/v1/jobs", json=FILE | {"ClientToken": "t1"}).json()["JobId"] == first
    code, message = refused(ours.submit_job, **FILE | {"Replicas": 3}, ClientToken="t1")
    assert (code, "another job" in message) == ("ValidationException", True)
    both = rest("POST", "/v1/jobs", json=FILE | {"ClientToken": "t1"}, headers={"Idempotency-Key": "t2"})
    assert (both.status_code, "differ" in both.json()["detail"]) == (422, True)
    assert refused(ours.submit_job, **FILE)[0] == "ResourceInUse", "boto3 fills in a new token each time"


def test_pages_begun_at_one_door_go_on_at_the_other(ours: Any, rest: Rest, cluster: str):
    for name in ("a", "b", "c"):
        ours.submit_job(**FILE | {"Name": name})
    pages = list(ours.get_paginator("list_jobs").paginate(PaginationConfig={"PageSize": 2}))
    assert [[job["Name"] for job in page["Jobs"]] for page in pages] == [["c", "b"], ["a"]]
    token = rest("GET", "/v1/jobs", params={"max_results": 1}).json()["NextToken"]
    assert ours.list_jobs(MaxResults=1, NextToken=token)["Jobs"][0]["Name"] == "b"
    token = ours.list_jobs(MaxResults=2, Live=True)["NextToken"]
    assert rest("GET", "/v1/jobs", params={"live": True, "next_token": token}).json()["Jobs"][0]["Name"] == "a"
    assert refused(ours.list_jobs, NextToken=token)[0] == "ValidationException", "it belongs to another question"


def test_jobs_are_listed_by_what_they_are_of(ours: Any, rest: Rest, job: str):
    ours.submit_job(**FILE, Team="red")
    ours.submit_job(**FILE | {"Name": "other"})

    def names(**members: Any) -> list[str]:
        return [found["Name"] for found in ours.list_jobs(**members)["Jobs"]]

    assert names(Team="red") == ["gpt"]
    assert names(Status="Forming") == ["j1"]
    assert names(Status="Queued", Cluster="c1", Live=True) == ["other", "gpt"]
    assert names(Status="Queued", Team="blue") == []
    assert [found["Team"] for found in rest("GET", "/v1/jobs?status=Queued&team=red").json()["Jobs"]] == ["red"]
    assert rest("GET", "/v1/jobs?status=queued").status_code == 422


def test_every_state_of_a_job_has_its_word_on_the_wire():
    assert {state.name: word(state) for state in JobState} == {status.name: status.value for status in JobStatus}


def test_steps_and_events_come_in_pages_in_order(ours: Any, job: str):
    steps = ours.get_paginator("list_job_steps").paginate(JobId=job, PaginationConfig={"PageSize": 1}).build_full_result()["Steps"]
    assert [step["Number"] for step in steps] == [0, 1]
    assert [step["Number"] for step in ours.list_job_steps(JobId=job, After=0)["Steps"]] == [1]
    pages = list(ours.get_paginator("list_job_events").paginate(JobId=job, PaginationConfig={"PageSize": 1}))
    assert len(pages) > 1
    assert pages[0]["Events"][0]["Name"] == "job submitted"
    assert "members" in next(
        event["Details"] for page in pages for event in page["Events"] if event["Name"] == "generation published"
    )


def test_what_a_model_can_check_is_refused_in_aws_s_words_and_all_at_once(server: Server, cluster: str):
    wrong = {"Name": "-x", "Cluster": "c1", "Command": [], "Replicas": 0, "Recovery": "never", "Replcias": 2}
    answer = server.call("SubmitJob", wrong, service="everstep", target_prefix="Everstep")
    assert (answer.status_code, answer.json()["__type"]) == (400, "ValidationException")
    message = answer.json()["message"]
    assert message.startswith("6 validation errors detected: Value '-x' at 'name' failed to satisfy constraint: ")
    assert "Value null at 'workingDir'" in message
    assert "did you mean Replicas?" in message
    assert "[in-process, process]" in message
    typed = server.call("ListJobs", {"MaxResults": "9"}, service="everstep", target_prefix="Everstep")
    assert typed.json()["__type"] == "SerializationException"


def test_what_only_the_job_file_knows_is_refused_in_its_words(ours: Any, cluster: str):
    wrong = [({"Env": {"RANK": "1"}}, "RANK"), ({"Elastic": {"Min": 2, "Max": 1}}, "min"), ({"InstanceGroups": ["x"]}, "workers")]
    for change, told in wrong:
        code, message = refused(ours.submit_job, **FILE | change)
        assert (code, told in message) == ("ValidationException", True), change


def test_errors_are_the_client_s_own_exceptions(ours: Any, cluster: str):
    with pytest.raises(ours.exceptions.ResourceNotFound, match="job-nothing"):
        ours.describe_job(JobId="job-nothing")
    with pytest.raises(ParamValidationError, match="Replicas"):
        ours.submit_job(**FILE | {"Replicas": "2"})
    with pytest.raises(ours.exceptions.ValidationException, match="maxResults"):
        ours.list_jobs(MaxResults=501)


def test_an_operation_that_there_is_not_is_named_and_those_that_there_are(server: Server):
    answer = server.call("MakeCoffee", {}, service="everstep", target_prefix="Everstep")
    assert answer.json()["__type"] == "UnknownOperationException"


def test_whatever_would_be_ignored_is_refused(rest: Rest, job: str):
    for query, told in (("colour=red", "colour"), ("limit=2&max_results=3", "max_results"), ("live=perhaps", "live")):
        answer = rest("GET", f"/v1/jobs?{query}")
        assert answer.status_code == 422
        assert told in str(answer.json()["violations"])
    assert rest("GET", f"/v1/jobs/{job}?job_id={job}").status_code == 422
    assert rest("GET", f"/v1/jobs/{job}", json={"Now": True}).status_code == 422
    assert rest("POST", f"/v1/jobs/{job}/stop", json={"job_id": job}).status_code == 422
    assert rest("POST", f"/v1/jobs/{job}/stop", json={"Now": True}).status_code == 422
    assert rest("POST", f"/v1/jobs/{job}/stop?now=true").status_code == 422


def test_waiters_return_when_the_job_is_there_and_give_up_when_it_never_will_be(ours: Any, job: str, sessions: Sessions):
    def wait(waiter: str) -> None:
        ours.get_waiter(waiter).wait(JobId=job, WaiterConfig={"Delay": 0, "MaxAttempts": 1})

    def go_to(state: JobState) -> None:
        with unit_of_work(sessions) as session:
            settle_job(session, session.get_one(Job, job), state, why="The test says so.", now=WallClock().now())

    with pytest.raises(WaiterError, match="Max attempts exceeded"):
        wait("job_training")
    go_to(JobState.TRAINING)
    wait("job_training")
    go_to(JobState.FAILED)
    wait("job_ended")
    with pytest.raises(WaiterError, match="Waiter JobSucceeded failed"):
        wait("job_succeeded")
