"""Whose a namespace is, what is kept, and what the loss of nodes leaves."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from everstep.tiers import CopyStatus
from models.checkpoint import changes, queries, reports
from models.checkpoint.states import ExportFormat, ExportState, StepState
from models.checkpoint.table import CheckpointCopy, CheckpointNamespace, CheckpointStep
from models.errors import InTransition, Kept, NamespaceTaken
from models.events import Event
from models.job.states import JobState
from models.job.table import Job
from models.node.table import Node
from models.notify import DIRECTIVE, NUDGE
from models.paging import Cut
from models.session import Sessions, unit_of_work
from tests import rows

NOW = rows.NOW


def words_of(session: Session, name: str) -> list[str]:
    session.flush()
    return list(session.scalars(select(Event.description).where(Event.name == name).order_by(Event.sequence)))


def saved(session: Session, *steps: int, world_size: int = 1, **of_job: object) -> tuple[Job, list[Node]]:
    """A job with complete steps; each of two nodes holds all shards of each."""
    cluster = rows.cluster(session)
    job = rows.job(session, cluster, **of_job)
    name = rows.namespace(session, job, "llama")
    nodes = rows.nodes(session, cluster, 2)
    for step in steps:
        for node in nodes:
            rows.held(session, node, name, step, range(world_size + 1), world_size=world_size)
    return job, nodes


# ----------------------------------------------------------------------------------------------------------- namespaces


def test_a_namespace_of_a_live_job_is_refused_to_another_by_the_name_of_its_holder(session: Session):
    job, _ = saved(session)
    other = rows.job(session, session.get_one(rows.Cluster, job.cluster_id), "other")
    with pytest.raises(NamespaceTaken, match=rf"'llama' is held by job j1 \({job.id}\), which has not ended"):
        rows.namespace(session, other, "llama")
    assert rows.namespace(session, job, "llama") == "llama", "asking again for one's own changes nothing"


def test_an_ended_jobs_namespace_passes_to_a_later_job_of_the_team_with_all_its_steps(session: Session):
    job, _ = saved(session, 10)
    rows.settle_job(session, job, JobState.STOPPED)
    later = rows.job(session, session.get_one(rows.Cluster, job.cluster_id), "later")
    rows.namespace(session, later, "llama")
    assert queries.of_job(session, later.id).name == "llama"
    assert queries.newest(session, "llama").in_memory == 10
    assert "goes on with the checkpoints of job j1" in words_of(session, "namespace taken over")[0]


def test_an_ended_jobs_namespace_stays_refused_to_other_teams(session: Session):
    job, _ = saved(session, team="red")
    rows.settle_job(session, job, JobState.STOPPED)
    other = rows.job(session, session.get_one(rows.Cluster, job.cluster_id), "other", team="blue")
    with pytest.raises(NamespaceTaken, match="another team"):
        rows.namespace(session, other, "llama")


def test_of_two_jobs_that_take_a_namespace_at_the_same_moment_one_gets_it(sessions: Sessions):
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
        jobs = [rows.job(session, cluster, name).id for name in ("a", "b")]
    meet, got = threading.Barrier(2), []

    def take(job_id: str) -> None:
        with sessions() as session, session.begin():
            meet.wait(timeout=20)
            try:
                changes.request_namespace(session, session.get_one(Job, job_id), "llama", now=NOW)
                got.append(job_id)
            except NamespaceTaken:
                session.rollback()

    threads = [threading.Thread(target=take, args=(job_id,)) for job_id in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    with sessions() as session:
        assert [row.job_id for row in session.scalars(select(CheckpointNamespace))] == got
    assert len(got) == 1


# ----------------------------------------------------------------------------------------------------------- what is kept


def test_the_newest_step_of_a_live_job_is_not_deleted_and_an_older_one_is(session: Session):
    job, _ = saved(session, 10, 20)
    with pytest.raises(Kept, match="it is the newest that job j1 could go on from"):
        changes.request_dropped(session, job, queries.get(session, "llama", 20, lock=True), by="ann", now=NOW)
    older = queries.get(session, "llama", 10, lock=True)
    changes.request_dropped(session, job, older, by="ann", now=NOW)
    assert (older.state, older.why, older.reconcile_at) == (StepState.DROPPING, "ann asked for it.", NOW)
    changes.request_dropped(session, job, older, by="ann", now=NOW)
    assert len(words_of(session, "checkpoint deletion requested")) == 1


def test_an_incomplete_newer_step_does_not_make_the_newest_complete_one_free(session: Session):
    job, [node, _] = saved(session, 10)
    rows.held(session, node, "llama", 20, [0], world_size=None)
    with pytest.raises(Kept):
        changes.request_dropped(session, job, queries.get(session, "llama", 10, lock=True), by="ann", now=NOW)


def test_a_later_jobs_newest_step_is_kept_from_those_who_know_it_by_the_job_before(session: Session):
    job, _ = saved(session, 10)
    rows.settle_job(session, job, JobState.STOPPED)
    rows.namespace(session, rows.job(session, session.get_one(rows.Cluster, job.cluster_id), "later"), "llama")
    with pytest.raises(Kept, match="job later could go on from"):
        changes.request_dropped(session, job, queries.get(session, "llama", 10, lock=True), by="ann", now=NOW)


def test_the_last_step_of_an_ended_job_can_be_deleted_unless_it_is_pinned(session: Session):
    job, _ = saved(session, 10)
    rows.settle_job(session, job, JobState.STOPPED)
    step = queries.get(session, "llama", 10, lock=True)
    changes.request_pinned(session, job, step, is_pinned=True, now=NOW)
    with pytest.raises(Kept, match="it is pinned"):
        changes.request_dropped(session, job, step, by="ann", now=NOW)
    changes.request_pinned(session, job, step, is_pinned=False, now=NOW)
    changes.request_dropped(session, job, step, by="ann", now=NOW)
    with pytest.raises(InTransition):
        changes.request_pinned(session, job, step, is_pinned=True, now=NOW)
    with pytest.raises(InTransition):
        changes.request_export(session, job, step, ExportFormat.DCP, target=None, by="ann", now=NOW)


def test_the_holders_of_a_namespace_and_the_reconciler_hear_of_a_pin(sessions: Sessions, listen):
    with unit_of_work(sessions) as session:
        job, nodes = saved(session, 10)
    ear = listen(DIRECTIVE, NUDGE)
    with unit_of_work(sessions) as session:
        step = queries.get(session, "llama", 10, lock=True)
        changes.request_pinned(session, session.get_one(Job, job.id), step, is_pinned=True, now=NOW)
    assert set(ear.heard(at_least=3)) == {node.id for node in nodes} | {"checkpoint:llama/10"}


def test_the_holders_of_a_namespace_that_is_taken_over_hear_that_it_has_not_ended(sessions: Sessions, listen):
    with unit_of_work(sessions) as session:
        job, nodes = saved(session, 10)
        rows.settle_job(session, job, JobState.STOPPED)
        later = rows.job(session, session.get_one(rows.Cluster, job.cluster_id), "later")
    ear = listen(DIRECTIVE)
    with unit_of_work(sessions) as session:
        rows.namespace(session, session.get_one(Job, later.id), "llama")
    assert set(ear.heard(at_least=2)) == {node.id for node in nodes}


def test_a_save_of_a_dropped_step_by_training_that_went_back_keeps_it_again(session: Session):
    job, [node, _] = saved(session, 10, 20)
    step = queries.get(session, "llama", 10, lock=True)
    changes.request_dropped(session, job, step, by="ann", now=NOW)
    rows.held(session, node, "llama", 10, [0, 1], at=NOW + timedelta(seconds=15))
    assert step.state is StepState.DROPPING, "the same save, told again"
    rows.held(session, node, "llama", 10, [0, 1], save="anew", at=NOW + timedelta(seconds=40))
    assert (step.state, step.save, step.why) == (StepState.KEPT, "anew", None)


def test_a_drain_that_ends_after_the_deletion_has_the_step_removed_once_more(session: Session):
    job, _ = saved(session, 10, 20)
    step = queries.get(session, "llama", 10, lock=True)
    changes.request_dropped(session, job, step, by="ann", now=NOW)
    changes.settle_dropped(session, step, now=NOW)
    rows.durable(session, session.get_one(rows.Cluster, job.cluster_id), "llama", 10)
    assert step.state is StepState.DROPPING
    assert step.reconcile_at is not None


def test_an_export_of_a_step_that_is_in_memory_alone_has_it_drained(session: Session):
    job, _ = saved(session, 10)
    step = queries.get(session, "llama", 10, lock=True)
    export = changes.request_export(session, job, step, ExportFormat.SAFETENSORS, target=None, by="ann", now=NOW)
    assert (step.is_drain_wanted, export.state, export.reconcile_at) == (True, ExportState.WANTED, NOW)
    rows.durable(session, session.get_one(rows.Cluster, job.cluster_id), "llama", 10)
    assert not step.is_drain_wanted
    changes.settle_export(session, export, ExportState.RUNNING, why=None, now=NOW)
    changes.settle_export(session, export, ExportState.DONE, why=None, url="file:///x", now=NOW)
    assert (export.ended_at, export.reconcile_at) == (NOW, None)
    assert words_of(session, "export done") == ["Step 10 of llama was written as safetensors to file:///x."]


# ----------------------------------------------------------------------------------------------------------- losses


def test_while_one_holder_lives_the_loss_of_a_node_is_no_loss_of_steps(session: Session):
    _, [one, other] = saved(session, 10)
    changes.settle_lost_copies(session, one.id, now=NOW)
    assert queries.newest(session, "llama").in_memory == 10
    assert words_of(session, "memory copies lost") == []
    changes.settle_lost_copies(session, other.id, now=NOW)
    assert queries.newest(session, "llama").in_memory is None
    assert words_of(session, "memory copies lost") == [
        f"Step 10 of llama is not complete in memory any more, since {other.instance_id} is gone, and there is no other step in any tier."
    ]


def test_when_all_holders_are_lost_the_newest_durable_step_is_named(session: Session):
    job, nodes = saved(session, 10, 20)
    rows.durable(session, session.get_one(rows.Cluster, job.cluster_id), "llama", 10)
    for node in nodes:
        changes.settle_lost_copies(session, node.id, now=NOW)
    assert "no other step is: the newest durable one is step 10" in words_of(session, "memory copies lost")[0]
    assert queries.newest(session, "llama").step == 10


def test_a_node_that_was_started_anew_may_hold_the_same_shard_again(session: Session):
    _, [one, _] = saved(session, 10)
    changes.settle_lost_copies(session, one.id, now=NOW)
    rows.held(session, one, "llama", 10, [0, 1], at=NOW + timedelta(seconds=60))
    assert len(queries.sealed_on(session, one.id)) == 2


def test_rows_of_steps_that_nobody_has_any_part_of_are_forgotten_and_others_stay(session: Session):
    job, nodes = saved(session, 10, 20, 30, 40)
    rows.durable(session, session.get_one(rows.Cluster, job.cluster_id), "llama", 20)
    changes.request_pinned(session, job, queries.get(session, "llama", 30, lock=True), is_pinned=True, now=NOW)
    for node in nodes:
        for step in (10, 20, 30):
            rows.held(session, node, "llama", step, [0, 1], status=CopyStatus.DROPPED, at=NOW + timedelta(seconds=90))
    assert changes.settle_forgotten(session, "llama", now=NOW) == 0, "a late word on them may still come"
    later = NOW + changes.FORGOTTEN_AFTER + timedelta(seconds=1)
    assert changes.settle_forgotten(session, "llama", now=later) == 1
    assert list(session.scalars(select(CheckpointStep.step).order_by(CheckpointStep.step))) == [20, 30, 40]
    assert not session.scalars(select(CheckpointCopy).where(CheckpointCopy.step_id == "llama/10")).all()
    rows.held(session, nodes[0], "llama", 10, [0, 1], status=CopyStatus.DROPPED, at=NOW + timedelta(seconds=99))
    assert queries.find(session, "llama", 10) is None, "that it is gone is no news"


def test_reports_of_a_namespace_that_no_job_of_the_cluster_has_are_nobodys(session: Session):
    _, [node, _] = saved(session)
    rows.held(session, node, "foreign", 10, [0, 1])
    other = rows.cluster(session, "c2")
    rows.held(session, rows.node(session, other, number=7), "llama", 10, [0, 1])
    assert session.scalars(select(CheckpointStep)).all() == []


# ----------------------------------------------------------------------------------------------------------- what is told


def test_saves_that_fail_again_and_again_are_told_once_a_minute_and_explain_no_interval(session: Session):
    job, _ = saved(session, 10)
    measured = reports.Saved(10, 0.1, 0.2, 5, 10, 50, "every 10 steps")
    reports.report_saved(session, job, measured, now=NOW)
    for second in range(90):
        failed = reports.Saved(11 + second, 0.0, 0.0, 0, None, None, f"not saved: step {11 + second} is not saved: no room")
        reports.report_saved(session, job, failed, now=NOW + timedelta(seconds=second))
    assert words_of(session, "checkpoint not saved") == ["Step 11 is not saved: no room.", "Step 71 is not saved: no room."]
    row = queries.namespace(session, "llama")
    assert (row.why, row.told_step, row.nbytes, row.memory_every) == ("every 10 steps", 10, 5, 10)


@pytest.mark.parametrize("why", ["it does not answer", "it does not answer."])
def test_an_outage_is_told_in_whole_sentences(session: Session, why: str):
    _, [node, _] = saved(session, 10)
    told = {"allocated_bytes": 1, "used_bytes": 0, "backlog_bytes": 0, "waiting_since": None, "refusals": 0, "note": None}
    reports.report_tier(session, node, reports.Tier(plan=1, outage=why, at=NOW, **told), now=NOW)
    [words] = words_of(session, "object store out")
    assert words.endswith("cannot reach the object store: it does not answer. Training goes on; what is saved waits in memory.")


# ----------------------------------------------------------------------------------------------------------- another cluster


def test_what_the_nodes_of_the_cluster_before_let_go_of_counts_no_more_once_the_namespace_has_moved(session: Session):
    job, nodes = saved(session, 10)
    rows.settle_job(session, job, JobState.STOPPED)
    elsewhere = rows.cluster(session, "elsewhere")
    rows.namespace(session, rows.job(session, elsewhere, "later"), "llama")
    for node in nodes:
        rows.held(session, node, "llama", 10, [0, 1], status=CopyStatus.DROPPED, at=NOW + timedelta(minutes=1))
    assert queries.newest(session, "llama").step is None
    stranger = rows.node(session, rows.cluster(session, "third"), number=9)
    rows.held(session, stranger, "llama", 10, [0, 1], at=NOW + timedelta(minutes=2))
    assert queries.newest(session, "llama").step is None, "a node that has never held anything of it is not heard"


def test_steps_that_memory_has_let_go_of_are_not_listed_and_those_that_somebody_asked_for_are(session: Session):
    job, nodes = saved(session, 10, 20, 30, 40)
    for node in nodes:
        for step in (10, 20, 30):
            rows.held(session, node, "llama", step, [0, 1], status=CopyStatus.DROPPED, at=NOW + timedelta(minutes=1))
    rows.durable(session, session.get_one(rows.Cluster, job.cluster_id), "llama", 20)
    changes.request_pinned(session, job, queries.get(session, "llama", 30, lock=True), is_pinned=True, now=NOW)
    assert [row.step for row in queries.listed(session, "llama", Cut(limit=10, is_descending=True)).rows] == [40, 30, 20]
