"""A job's checkpoints through both doors. What one says, the other says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from everstep.tiers import CopyStatus
from models.checkpoint import changes as checkpoint_changes
from models.checkpoint import queries, reports
from models.events import Event
from models.job.states import JobState
from models.job.table import Job
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.own.conftest import Rest
from tests.api.own.test_doors import FILE, plain, refused

OF = "/v1/jobs/{}/checkpoints"


@pytest.fixture
def saved(sessions: Sessions) -> str:
    """Step 10 is durable and in nobody's memory; of step 20 both nodes hold all, one copy has rotted; of step 30 there is one shard."""
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session, is_continuous=True)
        one, other = rows.nodes(session, cluster, 2)
        job = rows.job(session, cluster, spec={"command": ["x"], "checkpoint": {"namespace": "llama", "memory_every": 10}})
        name = rows.namespace(session, job, "llama")
        for node in (one, other):
            rows.held(session, node, name, 20, [0, 1])
        rows.held(session, other, name, 20, [0], status=CopyStatus.CORRUPT, at=rows.NOW + timedelta(seconds=25))
        rows.held(session, one, name, 30, [0], world_size=None)
        rows.durable(session, cluster, name, 10)
        told = reports.Saved(30, 0.25, 1.5, 1 << 20, 10, 50, "every 10 steps, from 0.25 s and one fault in 7200 s")
        reports.report_saved(session, job, told, now=rows.NOW)
        checkpoint_changes.settle_fault_rate(session, name, 7200.0, now=rows.NOW)
        return job.id


def test_both_doors_tell_the_same_of_checkpoints(ours: Any, rest: Rest, saved: str):
    listed = ours.list_job_checkpoints(JobId=saved)
    assert plain(listed) == plain(rest("GET", OF.format(saved)).json())
    newest, complete, durable = listed["Checkpoints"]
    assert (newest["Step"], newest["IsCompleteInMemory"], newest["ShardsInMemory"]) == (30, False, 1)
    assert "WorldSize" not in newest, "nobody has told it yet"
    assert (complete["Step"], complete["IsCompleteInMemory"], complete["Copies"], complete["Bytes"]) == (20, True, 3, 2 << 20)
    assert (durable["Step"], durable["Bytes"], durable["Copies"]) == (10, 2 << 20, 0)
    assert durable["DurableAt"] == rows.NOW + timedelta(seconds=10)
    shown = ours.describe_job_checkpoint(JobId=saved, Step=20)
    assert plain(shown) == plain(rest("GET", f"{OF.format(saved)}/20").json())
    data, metadata = shown["Shards"]
    assert (data["Kind"], metadata["Kind"], metadata["Digest"]) == ("Data", "Metadata", f"{1:032x}")
    assert [
        (holder["InstanceId"][-1], holder["Status"]) for holder in sorted(data["Holders"], key=lambda one: one["InstanceId"])
    ] == [
        ("1", "Sealed"),
        ("2", "Corrupt"),
    ]


def test_pages_of_checkpoints_neither_repeat_nor_hide_one(ours: Any, saved: str):
    pages = ours.get_paginator("list_job_checkpoints").paginate(JobId=saved, PaginationConfig={"PageSize": 2})
    assert [[step["Step"] for step in page["Checkpoints"]] for page in pages] == [[30, 20], [10]]


def test_a_job_tells_how_it_stands_with_its_checkpoints(ours: Any, rest: Rest, saved: str):
    told = ours.describe_job(JobId=saved)["Checkpoint"]
    assert (told["NewestInMemory"], told["NewestDurable"], told["Namespace"]) == (20, 10, "llama")
    assert (told["MemoryEvery"], told["DurableEvery"], told["StallS"], told["SaveS"], told["MtbfS"]) == (10, 50, 0.25, 1.5, 7200.0)
    assert told["Why"].startswith("every 10 steps")
    assert told["AgeOfLastDurableStepS"] >= 0
    fresh = rest("POST", "/v1/jobs", json=FILE).json()["JobId"]
    nothing = rest("GET", f"/v1/jobs/{fresh}").json()["Checkpoint"]
    assert (nothing["Namespace"], nothing["NewestDurable"], nothing["AgeOfLastDurableStepS"]) == (fresh, None, None)


def test_a_step_is_pinned_and_unpinned_at_either_door(ours: Any, rest: Rest, saved: str, sessions: Sessions):
    assert ours.pin_job_checkpoint(JobId=saved, Step=20)["IsPinned"] is True
    assert rest("POST", f"{OF.format(saved)}/20/pin", json={"pinned": True}).json()["IsPinned"] is True
    with sessions() as session:
        assert session.query(Event).filter_by(name="checkpoint pinned").count() == 1
    assert rest("POST", f"{OF.format(saved)}/20/pin", json={"pinned": False}).json()["IsPinned"] is False
    code, message = refused(ours.pin_job_checkpoint, JobId=saved, Step=30)
    assert (code, "nodes hold 1 of its shards" in message) == ("ValidationException", True)
    assert refused(ours.pin_job_checkpoint, JobId=saved, Step=99)[0] == "ResourceNotFound"


def test_deleting_says_why_a_step_is_kept_and_asks_for_the_end_of_others(ours: Any, rest: Rest, saved: str, sessions: Sessions):
    code, message = refused(ours.delete_job_checkpoint, JobId=saved, Step=20)
    assert code == "ConflictException"
    assert "the newest that job j1 could go on from" in message
    answer = rest("DELETE", f"{OF.format(saved)}/20")
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    gone = rest("DELETE", f"{OF.format(saved)}/10")
    assert (gone.status_code, gone.json()["Status"]) == (202, "Dropping")
    assert ours.delete_job_checkpoint(JobId=saved, Step=10)["Status"] == "Dropping", "asking again changes nothing"
    with unit_of_work(sessions) as session:
        checkpoint_changes.settle_dropped(session, queries.get(session, "llama", 10, lock=True), now=rows.NOW)
    assert [step["Step"] for step in ours.list_job_checkpoints(JobId=saved)["Checkpoints"]] == [30, 20]


def test_an_export_is_asked_for_once_however_often_it_is_sent(ours: Any, rest: Rest, saved: str):
    first = ours.export_job_checkpoint(JobId=saved, Step=20, Format="safetensors", ClientToken="t1")
    assert (first["Status"], first["Format"]) == ("Wanted", "safetensors")
    again = ours.export_job_checkpoint(JobId=saved, Step=20, Format="safetensors", ClientToken="t1")
    assert again["ExportId"] == first["ExportId"]
    assert [one["ExportId"] for one in ours.describe_job_checkpoint(JobId=saved, Step=20)["Exports"]] == [first["ExportId"]]
    assert rest("POST", f"{OF.format(saved)}/10/exports", json={"format": "zip"}).status_code == 422
    assert refused(ours.export_job_checkpoint, JobId=saved, Step=30, Format="dcp")[0] == "ValidationException"


def test_a_namespace_of_a_live_job_is_refused_at_submission_with_its_holder_named(
    ours: Any, rest: Rest, saved: str, sessions: Sessions
):
    mine = FILE | {"Checkpoint": {"Namespace": "llama"}}
    with pytest.raises(ClientError, match=f"'llama' is held by job j1 .{saved}.") as found:
        ours.submit_job(**mine)
    assert found.value.response["Error"]["Code"] == "ConflictException"
    answer = rest("POST", "/v1/jobs", json=mine)
    assert answer.status_code == 409
    with unit_of_work(sessions) as session:
        assert session.query(Job).count() == 1, "nothing of it is left"
        rows.settle_job(session, session.get_one(Job, saved), JobState.STOPPED)
    later = rest("POST", "/v1/jobs", json=mine).json()["JobId"]
    assert [step["Step"] for step in ours.list_job_checkpoints(JobId=later)["Checkpoints"]] == [30, 20, 10]
    assert ours.describe_job(JobId=later)["Checkpoint"]["NewestInMemory"] == 20
