"""Faults of checkpoints: one copy of a shard, and the object store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from everstep.tiers import CopyStatus
from models.checkpoint.changes import request_namespace
from models.checkpoint.reports import Copy, Held, report_copies
from models.clock import WallClock
from models.fault import queries
from models.fault.changes import settle_outages
from models.job.table import Job
from models.node.table import Node
from models.session import Sessions, unit_of_work
from tests.api.own.conftest import Rest
from tests.api.own.test_doors import refused

SHARDS = (Copy(0, CopyStatus.SEALED, 100, "aa"), Copy(1, CopyStatus.DROPPED, 100, "bb"), Copy(2, CopyStatus.SEALED, 10, "cc"))


@pytest.fixture
def saved(job: str, sessions: Sessions) -> str:
    """The job has saved step 40: of its two data shards one is held by its node, and the metadata shard."""
    with unit_of_work(sessions) as session:
        now = WallClock().now()
        request_namespace(session, session.get_one(Job, job), job, now=now)
        node = session.scalars(select(Node).order_by(Node.id)).first()
        report_copies(session, node, Held(job, 40, "s1", 2, SHARDS, now, now), now=now)
    return job


def test_a_copy_that_a_node_holds_is_struck_there(ours: Any, saved: str, sessions: Sessions):
    fault = ours.inject_fault(Kind="corrupt-shard", Target=f"{saved}/40/0")
    assert (fault["Status"], fault["JobId"], "InstanceId" in fault) == ("Wanted", saved, True)
    with sessions() as session:
        asked = queries.get(session, fault["FaultId"])
        assert (asked.namespace, asked.step, asked.shard, asked.node_id is not None) == (saved, 40, 0, True)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{job}/40", "JOB_ID/STEP/SHARD"),
        ("{job}/40/x", "JOB_ID/STEP/SHARD"),
        ("{job}/" + "9" * 40 + "/0", "JOB_ID/STEP/SHARD"),
        ("{job}/41/0", "no checkpoint of step 41"),
        ("{job}/40/1", "the shards that are held: 0, 2"),
        ("job-nothing/40/0", "job-nothing"),
    ],
)
def test_what_there_is_no_copy_of_is_refused_in_words(ours: Any, saved: str, target: str, words: str):
    _, message = refused(ours.inject_fault, Kind="corrupt-shard", Target=target.format(job=saved))
    assert words in message


def test_an_outage_lasts_until_it_is_cleared_and_there_is_one_at_a_time(ours: Any, rest: Rest, sessions: Sessions, job: str):
    assert "object-store" in refused(ours.inject_fault, Kind="bucket-outage", Target=job)[1]
    fault = ours.inject_fault(Kind="bucket-outage", Target="object-store")
    assert (fault["Status"], "InstanceId" in fault, "JobId" in fault) == ("Holding", False, False)
    assert [one["FaultId"] for one in ours.list_faults(Live=True)["Faults"]] == [fault["FaultId"]]
    assert "out already" in refused(ours.inject_fault, Kind="bucket-outage", Target="object-store")[1]
    with sessions() as session:
        assert queries.is_store_out(session)
    for _ in range(2):
        assert rest("DELETE", f"/v1/faults/{fault['FaultId']}").json()["Status"] == "Ended"
    with sessions() as session:
        assert not queries.is_store_out(session)


def test_an_outage_ends_when_its_time_is_over_and_not_before(ours: Any, sessions: Sessions, job: str):
    fault = ours.inject_fault(Kind="bucket-outage", Target="object-store", Seconds=60)["FaultId"]
    now = WallClock().now()
    for later, ended in ((50, 0), (61, 1), (62, 0)):
        with unit_of_work(sessions) as session:
            assert settle_outages(session, now=now + timedelta(seconds=later)) == ended
    with sessions() as session:
        assert not queries.is_store_out(session)
        assert queries.get(session, fault).ended_at is not None
