from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from models.access.states import KEY
from models.cluster import queries
from models.cluster.states import CLUSTER, GROUP, ClusterState, GroupState
from models.errors import IllegalMove
from models.events import Event
from models.job.states import JOB, JobState
from models.move import advance, move, wake
from models.notify import NUDGE
from models.session import Sessions, unit_of_work
from tests import rows
from tests.postgres import Ear

LATER = rows.NOW + timedelta(minutes=1)


def test_a_move_changes_the_state_the_version_and_the_time(session: Session) -> None:
    cluster = rows.cluster(session)
    version = cluster.version
    assert move(session, CLUSTER, cluster, ClusterState.IN_SERVICE, now=LATER) == "created"
    assert (cluster.state, cluster.version, cluster.state_since) == (ClusterState.IN_SERVICE, version + 1, LATER)
    assert cluster.reconcile_at == LATER


def test_an_illegal_move_changes_nothing_and_names_the_row(session: Session) -> None:
    cluster = rows.cluster(session, "c9")
    before = (cluster.state, cluster.version, cluster.state_since, cluster.reconcile_at)
    with pytest.raises(IllegalMove, match="Cluster 'c9' cannot go from creating to deleted"):
        move(session, CLUSTER, cluster, ClusterState.DELETED, now=LATER)
    assert (cluster.state, cluster.version, cluster.state_since, cluster.reconcile_at) == before


def test_a_row_at_its_end_is_not_looked_at_again(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    move(session, JOB, job, JobState.STOPPED, now=LATER)
    assert job.reconcile_at is None


def test_states_come_back_from_the_database_as_members_of_their_enum(session: Session) -> None:
    cluster = rows.cluster(session)
    group = queries.groups(session, cluster.id)[0]
    session.expire_all()
    assert cluster.state is ClusterState.CREATING
    assert group.state is GroupState.CREATING
    assert session.scalar(text("SELECT state FROM cluster")) == "creating"
    assert advance(GROUP, group, GroupState.IN_SERVICE, now=LATER) == "at target"


def test_a_part_without_a_clock_of_its_own_can_advance(session: Session) -> None:
    rows.access_key(session, "AKIA1")
    key = rows.access_key(session, "AKIA2")
    assert advance(KEY, key, KEY.states[1], now=LATER) == "revoked"
    session.flush()


def test_a_committed_move_is_heard_by_the_relay(sessions: Sessions, listen: Callable[..., Ear]) -> None:
    ear = listen(NUDGE)
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
        assert ear.heard(within_s=0.1) == []
    assert f"cluster:{cluster.id}" in ear.heard()


def test_a_rolled_back_move_notifies_nobody(sessions: Sessions, listen: Callable[..., Ear]) -> None:
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
    ear = listen(NUDGE)
    with sessions() as session:
        move(session, CLUSTER, session.merge(cluster), ClusterState.IN_SERVICE, now=LATER)
        session.rollback()
    assert ear.heard(within_s=0.2) == []
    with sessions() as session:
        assert queries.find(session, "c1").state is ClusterState.CREATING


def test_waking_a_row_twice_in_a_transaction_nudges_once(sessions: Sessions, listen: Callable[..., Ear]) -> None:
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
    ear = listen(NUDGE)
    with unit_of_work(sessions) as session:
        mine = queries.find(session, cluster.name, lock=True)
        wake(session, mine, now=LATER)
        wake(session, mine, now=LATER)
    assert ear.heard(at_least=0, within_s=0.3) == [f"cluster:{cluster.id}"]


def test_events_are_told_in_the_order_in_which_they_were_recorded(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    for state in (JobState.FORMING, JobState.TRAINING, JobState.RECOVERING, JobState.TRAINING, JobState.SUCCEEDED):
        rows.settle_job(session, job, state)
    names = session.scalars(select(Event.name).where(Event.job_id == job.id).order_by(Event.sequence)).all()
    assert names == ["job submitted", "job forming", "job training", "job recovering", "job training", "job succeeded"]
