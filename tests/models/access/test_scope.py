"""A team's session sees and changes its own: two teams, each with a cluster, and a shared cluster where both run a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.orm import Session, aliased

from models import events
from models.access import scope
from models.access.scope import Unrestricted
from models.base import Base
from models.cluster import changes as cluster_changes
from models.cluster import queries as clusters
from models.cluster.table import Cluster, InstanceGroup, Tag
from models.errors import Forbidden, NotFound
from models.events import About, Event, EventFilter
from models.image.states import ReleaseState
from models.image.table import ImageRelease
from models.job import changes as job_changes
from models.job import logs
from models.job import queries as jobs
from models.job.states import ProcessState
from models.job.table import Generation, Job, JobProcess, ProcessLog
from models.node import queries as nodes
from models.node.table import Node
from models.notify import notify_all
from models.paging import Cut
from models.session import ACROSS_TEAMS
from tests import rows


@dataclass
class World:
    """What belongs to team red, to team blue and to everybody. ``held`` are the nodes of the shared cluster on which a team's job runs."""

    clusters: dict[str, Cluster]
    jobs: dict[str, Job]
    held: dict[str, Node]
    free: Node


@pytest.fixture
def world(session: Session) -> World:
    made = {team: rows.cluster(session, team, team=team) for team in ("red", "blue")}
    shared = rows.cluster(session, "shared")
    places = rows.nodes(session, shared, 3)
    jobs_of, held = {}, {}
    for team, node in zip(("red", "blue"), places, strict=False):
        cluster_changes.put_tags(session, made[team].arn, {"team": team})
        job = rows.job(session, shared, f"job-of-{team}", team=team)
        (process,) = job_changes.settle_processes(session, job, [(node.id, 0)], now=rows.NOW)
        rows.reach(session, process, ProcessState.READY)
        job_changes.settle_generation(session, job, [process], cause="start", evidence_at=None, now=rows.NOW)
        logs.report_log(session, process.id, f"words of {team}", skipped=0, now=rows.NOW)
        jobs_of[team], held[team] = job, node
    session.flush()
    session.expunge_all()
    return World({**made, "shared": shared}, jobs_of, held, places[2])


@pytest.fixture
def red(session: Session, world: World) -> Session:
    scope.bind(session, "red")
    return session


def names(found: Any) -> set[str]:
    return {row.name for row in found}


def test_a_team_sees_its_clusters_and_the_shared_ones(red: Session):
    assert names(red.scalars(select(Cluster))) == {"red", "shared"}
    assert red.scalar(select(func.count()).select_from(Cluster)) == 2
    assert set(red.scalars(select(Cluster.name))) == {"red", "shared"}
    other = aliased(Cluster)
    assert names(red.scalars(select(other))) == {"red", "shared"}
    assert names(clusters.listed(red, clusters.ClusterFilter(), Cut(10)).rows) == {"red", "shared"}
    with pytest.raises(NotFound):
        clusters.find(red, "blue")


def test_no_id_reaches_a_row_of_another_team(red: Session, world: World):
    theirs: list[tuple[type[Any], Any]] = [(Cluster, world.clusters["blue"].id), (Job, world.jobs["blue"].id)]
    theirs += [(Node, world.held["blue"].id), (Generation, (world.jobs["blue"].id, 1))]
    for mapped, key in theirs:
        assert red.get(mapped, key) is None, mapped.__name__
    ours = [(Cluster, world.clusters["red"].id), (Job, world.jobs["red"].id), (Node, world.held["red"].id)]
    for mapped, key in ours:
        assert red.get(mapped, key) is not None, mapped.__name__


def test_a_node_is_hidden_while_another_team_has_a_process_on_it(red: Session, session: Session, world: World):
    shared = world.clusters["shared"].id
    assert {node.id for node in nodes.of_cluster(red, shared)} == {world.held["red"].id, world.free.id}
    other = aliased(Node)
    assert set(red.scalars(select(other.id).where(other.cluster_id == shared))) == {world.held["red"].id, world.free.id}
    scope.bind(session, None)
    (process,) = jobs.processes(session, world.jobs["blue"].id)
    rows.reach(session, process, ProcessState.EXITED)
    session.expunge_all()
    scope.bind(session, "red")
    assert len(nodes.of_cluster(session, shared)) == 3


def test_a_job_of_nobody_hides_its_node_from_teams_too(red: Session, session: Session, world: World):
    scope.bind(session, None)
    job = rows.job(session, world.clusters["shared"], "of-nobody")
    job_changes.settle_processes(session, job, [(world.free.id, 0)], now=rows.NOW)
    scope.bind(session, "red")
    assert red.get(Job, job.id, populate_existing=True) is None
    assert {node.id for node in nodes.of_cluster(red, world.clusters["shared"].id)} == {world.held["red"].id}


def test_what_hangs_on_a_job_is_its_teams_alone(red: Session, world: World):
    for mapped in (JobProcess, Generation):
        assert set(red.scalars(select(mapped.job_id))) == {world.jobs["red"].id}, mapped.__name__
    assert red.scalars(select(ProcessLog.text)).all() == ["words of red"]
    assert logs.of_job(red, world.jobs["blue"].id) == []
    assert set(red.scalars(select(Tag.value))) == {"red"}


def test_events_of_other_teams_are_not_told(red: Session, world: World):
    told = list(red.scalars(select(Event)))
    assert told
    assert {event.job_id for event in told} == {None, world.jobs["red"].id}
    assert world.clusters["blue"].id not in {event.cluster_id for event in told}
    shared = events.of_cluster(red, world.clusters["shared"].id, EventFilter(), Cut(100)).rows
    assert world.held["blue"].id not in {event.node_id for event in shared}
    assert world.held["red"].id in {event.node_id for event in shared}


def test_the_audit_log_tells_a_team_of_its_own_calls(session: Session):
    for team in ("red", "blue", None):
        events.record(session, "StopJob", "called", about=About.CALL, details={"team": team}, now=rows.NOW)
    scope.bind(session, "red")
    calls = session.scalars(select(Event).where(Event.about == About.CALL)).all()
    assert [call.details["team"] for call in calls] == ["red"]


def test_subqueries_and_joins_are_restricted_too(red: Session):
    joined = select(Job.name, Cluster.name).join(Cluster, Cluster.id == Job.cluster_id)
    assert [tuple(row) for row in red.execute(joined)] == [("job-of-red", "shared")]
    inside = select(InstanceGroup.name).where(InstanceGroup.cluster_id.in_(select(Cluster.id).where(Cluster.name == "blue")))
    assert red.scalars(inside).all() == []
    among = select(Cluster).where(select(Job.id).where(Job.name == "job-of-blue").exists())
    assert red.scalars(among).all() == []


def test_what_is_written_in_bulk_reaches_only_what_is_the_teams_own(red: Session, session: Session):
    red.execute(update(Cluster).values(failure_message="touched").execution_options(synchronize_session=False))
    red.execute(update(Job).values(why="touched").execution_options(synchronize_session=False))
    red.execute(delete(Tag).execution_options(synchronize_session=False))
    scope.bind(session, None)
    assert set(session.scalars(select(Cluster.name).where(Cluster.failure_message == "touched"))) == {"red"}
    assert set(session.scalars(select(Job.name).where(Job.why == "touched"))) == {"job-of-red"}
    assert set(session.scalars(select(Tag.value))) == {"blue"}


def test_a_shared_cluster_is_looked_at_and_not_changed(red: Session, world: World):
    assert clusters.find(red, "shared").name == "shared"
    with pytest.raises(Forbidden, match="belongs to everybody"):
        clusters.find(red, "shared", lock=True)
    assert clusters.find(red, "red", lock=True).name == "red"


@pytest.mark.parametrize("mapped, column", [(Cluster, "failure_message"), (InstanceGroup, "instance_type"), (Node, "message")])
def test_a_use_case_that_forgets_to_ask_cannot_write_what_is_everybodys(red: Session, world: World, mapped: Any, column: str):
    place = mapped.id if mapped is Cluster else mapped.cluster_id
    row = red.scalars(select(mapped).where(place == world.clusters["shared"].id).limit(1)).one()
    setattr(row, column, "changed")
    with pytest.raises(Forbidden, match="team red"):
        red.flush()


def test_a_teams_own_rows_are_written_as_ever(red: Session, world: World):
    made = rows.cluster(red, "another", team="red")
    rows.job(red, clusters.find(red, "shared"), "mine", team="red")
    job_changes.request_stop(red, jobs.get(red, world.jobs["red"].id, lock=True), now=rows.NOW)
    cluster_changes.request_deletion(red, clusters.find(red, made.name, lock=True), now=rows.NOW)
    with pytest.raises(Forbidden):
        rows.job(red, clusters.find(red, "shared"), "theirs", team="blue")


def test_what_is_the_installations_is_read_by_every_team_and_written_by_none(red: Session):
    assert red.scalars(select(ImageRelease)).all() == []
    release = {
        "version": "9.9.9",
        "image_id": "default",
        "state": ReleaseState.AVAILABLE,
        "is_security": False,
        "released_at": rows.NOW,
    }
    with pytest.raises(Forbidden):
        red.execute(insert(ImageRelease).values(release))
    red.add(ImageRelease(**release))
    with pytest.raises(Forbidden):
        red.flush()


def test_no_statement_goes_past_the_rules(red: Session):
    for statement in (text("SELECT name FROM cluster"), select(Cluster.__table__.c.name), select(func.count(Job.__table__.c.id))):
        with pytest.raises(Unrestricted):
            red.execute(statement)
    notify_all(red, "everstep_test", ["a"])
    every = select(func.count()).select_from(Cluster).execution_options(**{ACROSS_TEAMS: True})
    assert red.scalar(every) == 3


@pytest.mark.parametrize("mapped", sorted((mapper.class_ for mapper in Base.registry.mappers), key=lambda mapped: mapped.__name__))
def test_it_is_said_of_every_table_whose_its_rows_are(mapped: type[Any]):
    for to_write in (False, True):
        scope.rule_of(mapped, "red", to_write=to_write)


def test_whoever_is_bound_to_no_team_sees_everything(session: Session, world: World):
    scope.bind(session, "red")
    scope.bind(session, None)
    assert names(session.scalars(select(Cluster))) == {"red", "blue", "shared"}
    clusters.find(session, "shared", lock=True)
