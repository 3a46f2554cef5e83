"""A line of a driver names the process that it struck: on a shared cluster it is told to that process's team alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth import Caller
from api.operations.work import Work
from api.own import conditions
from api.own.conditions import ConditionsWanted, NodeOfCluster
from models.access import scope
from models.condition import changes
from models.condition.changes import Finding
from models.condition.states import FaultClass
from models.events import Event
from models.job import changes as job_changes
from models.job.states import ProcessState
from models.node.table import Node
from tests import rows

LINE = "NVRM: Xid (PCI:0000:04:00): 13, pid=4242, name=secret-of-blue"
COUNTED = "7 of 8 devices are there."
MINUTE = timedelta(minutes=1)


def told(session: Session, caller: str | None) -> tuple[dict[str, str], dict[str, str], str]:
    """What a caller of the team is told, by code: as conditions, and as fault details; and the texts of the node's events."""
    if caller is not None:
        scope.bind(session, caller)
    work = Work(session, rows.NOW + 3 * MINUTE, "us-east-1", Caller("123456789012", "somebody", team=caller))
    listed = conditions.listing(work, ConditionsWanted(cluster_name="c1")).conditions
    node = session.scalars(select(Node)).one()
    shown = conditions.describe(work, NodeOfCluster(cluster_name="c1", node_id=node.logical_id))
    assert [one.evidence for one in shown.conditions] == [one.evidence for one in listed]
    texts = " ".join(event.description for event in session.scalars(select(Event).where(Event.node_id == node.id)))
    details = {one.type: one.message for one in shown.fault_details}
    return {one.code: one.evidence for one in listed}, details, texts


def struck(session: Session, *, by: str, of_cluster: str | None = None) -> None:
    """A node on which a job of a team ran for a while and was struck, and which is free again."""
    shared = rows.cluster(session, team=of_cluster)
    node = rows.node(session, shared)
    job = rows.job(session, shared, team=by)
    (process,) = job_changes.settle_processes(session, job, [(node.id, 0)], now=rows.NOW)
    rows.reach(session, process, ProcessState.READY)
    at = rows.NOW + MINUTE
    for name, pid, line in (("named", 4242, LINE), ("counted", None, COUNTED)):
        finding = Finding(name, FaultClass.REPLACE, name, name.capitalize(), "Reason", line, at, pid=pid)
        changes.report_fault(session, node, finding, now=at)
    job_changes.settle_given_up(session, job, process, why="A fault.", now=at + MINUTE)
    session.flush()


@pytest.mark.parametrize("caller", [None, "blue"])
def test_who_has_the_process_or_no_team_reads_the_whole_line(session: Session, caller: str | None):
    struck(session, by="blue")
    evidence, details, _ = told(session, caller)
    assert evidence == {"named": LINE, "counted": COUNTED}
    assert details == {"Named": LINE, "Counted": COUNTED}


def test_another_team_is_told_that_there_was_a_fault_and_no_word_of_whose_process_it_struck(session: Session):
    struck(session, by="blue")
    evidence, details, texts = told(session, "red")
    assert evidence["counted"] == details["Counted"] == COUNTED
    for text in (evidence["named"], details["Named"], texts):
        assert "blue" not in text
        assert "4242" not in text
    assert "fault" in texts or "Named" in texts


def test_a_process_that_a_team_had_there_later_opens_no_line_of_before(session: Session):
    struck(session, by="blue")
    node = session.scalars(select(Node)).one()
    job = rows.job(session, rows.clusters.find(session, "c1"), "later", team="red")
    job_changes.settle_processes(session, job, [(node.id, 0)], now=rows.NOW + 2 * MINUTE)
    session.flush()
    evidence, _, _ = told(session, "red")
    assert "blue" not in evidence["named"]


def test_a_team_reads_all_of_its_own_cluster(session: Session):
    struck(session, by="blue", of_cluster="blue")
    assert told(session, "blue")[0] == {"named": LINE, "counted": COUNTED}
