from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from models.cluster import changes, queries
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import AlreadyExists, IllegalMove, NotFound
from models.events import Event
from models.operation.states import OperationState
from models.operation.table import Operation
from models.session import Sessions, unit_of_work
from tests import rows

NOW = rows.NOW
LATER = NOW + timedelta(minutes=5)


def in_service(session: Session, **changes_: object) -> Cluster:
    cluster = rows.cluster(session, **changes_)
    for group in queries.groups(session, cluster.id):
        changes.settle_group(session, cluster, group, GroupState.IN_SERVICE, why="At target.", now=NOW)
    rows.settle_cluster(session, cluster, ClusterState.IN_SERVICE)
    changes.settle_operations(session, cluster, now=NOW)
    return cluster


def update(
    session: Session, cluster: Cluster, *groups: changes.GroupSpec, to_delete: tuple[str, ...] = (), **settings: object
) -> None:
    changes.request_update(session, cluster, groups=groups, to_delete=to_delete, settings=settings, now=LATER)


def group_of(session: Session, cluster: Cluster, name: str = "workers") -> InstanceGroup:
    return next(group for group in queries.groups(session, cluster.id) if group.name == name)


def test_a_cluster_begins_with_its_groups_its_tags_and_one_operation(session: Session) -> None:
    groups = (rows.group_spec("b", 1), rows.group_spec("a", 2))
    cluster = rows.cluster(session, groups=groups, tags={"team": "x", "env": "dev"})
    assert cluster.arn == f"arn:aws:sagemaker:us-east-1:123456789012:cluster/{cluster.id}"
    assert [(group.name, group.target_count, group.state) for group in queries.groups(session, cluster.id)] == [
        ("b", 1, GroupState.CREATING),
        ("a", 2, GroupState.CREATING),
    ]
    assert [(tag.key, tag.value) for tag in queries.tags(session, cluster.arn)] == [("team", "x"), ("env", "dev")]
    assert operations(session, cluster) == [(OperationState.IN_PROGRESS, {"b", "a"})]


def test_a_name_is_unique_among_live_clusters(session: Session) -> None:
    rows.cluster(session, "c1")
    with pytest.raises(AlreadyExists, match="Cluster with name c1"):
        rows.cluster(session, "c1")
    rows.cluster(session, "c2")


def test_a_name_is_free_again_once_its_cluster_is_deleted(session: Session) -> None:
    old = rows.cluster(session, "c1")
    changes.request_deletion(session, old, now=NOW)
    with pytest.raises(AlreadyExists):
        rows.cluster(session, "c1")
    rows.settle_cluster(session, old, ClusterState.DELETED)
    new = rows.cluster(session, "c1")
    assert queries.find(session, "c1").id == new.id
    with pytest.raises(NotFound):
        queries.find(session, old.arn)


def test_of_two_callers_who_want_one_name_at_once_one_gets_it(sessions: Sessions) -> None:
    start = threading.Barrier(2)
    ends: list[str] = []

    def create() -> None:
        start.wait(timeout=10)
        try:
            with unit_of_work(sessions) as session:
                rows.cluster(session, "wanted")
            ends.append("made")
        except AlreadyExists:
            ends.append("taken")

    callers = [threading.Thread(target=create) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=20)
    assert sorted(ends) == ["made", "taken"]


def test_listed_groups_are_changed_or_added_by_name_and_others_stay(session: Session) -> None:
    cluster = in_service(session, groups=(rows.group_spec("a", 2), rows.group_spec("b", 2)))
    update(session, cluster, rows.group_spec("c", 1), rows.group_spec("b", 5), rows.group_spec("d", 1))
    found = [(group.name, group.target_count, group.state) for group in queries.groups(session, cluster.id)]
    assert found == [
        ("a", 2, GroupState.IN_SERVICE),
        ("b", 5, GroupState.UPDATING),
        ("c", 1, GroupState.CREATING),
        ("d", 1, GroupState.CREATING),
    ]
    assert cluster.state is ClusterState.UPDATING


def test_a_change_that_keeps_the_counts_leaves_the_group_in_service(session: Session) -> None:
    cluster = in_service(session)
    update(session, cluster, replace(rows.group_spec(), spec={"LifeCycleConfig": {"OnCreate": "new.sh"}}))
    group = group_of(session, cluster)
    assert (group.state, group.spec) == (GroupState.IN_SERVICE, {"LifeCycleConfig": {"OnCreate": "new.sh"}})


def test_a_failed_group_is_tried_again_whatever_was_changed(session: Session) -> None:
    cluster = in_service(session)
    group = group_of(session, cluster)
    rows.settle_group(session, cluster, group, GroupState.UPDATING)
    rows.settle_group(session, cluster, group, GroupState.FAILED)
    update(session, cluster, replace(rows.group_spec(), spec={"LifeCycleConfig": {"OnCreate": "repaired.sh"}}))
    assert group.state is GroupState.UPDATING


def test_a_group_that_is_going_away_cannot_be_changed(session: Session) -> None:
    cluster = in_service(session, is_continuous=True)
    update(session, cluster, to_delete=("workers",))
    with pytest.raises(IllegalMove):
        update(session, cluster, rows.group_spec())


def test_a_group_to_delete_must_exist(session: Session) -> None:
    with pytest.raises(NotFound, match="Instance group 'absent'"):
        update(session, in_service(session), to_delete=("absent",))


def test_settings_are_merged_and_the_last_failure_is_forgotten(session: Session) -> None:
    cluster = in_service(session, settings={"NodeRecovery": "None", "VpcConfig": {"Subnets": ["s"]}})
    cluster.failure_message = "before"
    update(session, cluster, NodeRecovery="Automatic")
    assert cluster.settings == {"NodeRecovery": "Automatic", "VpcConfig": {"Subnets": ["s"]}}
    assert cluster.failure_message is None


def test_a_newer_operation_supersedes_the_one_in_progress(session: Session) -> None:
    cluster = in_service(session, is_continuous=True)
    update(session, cluster, rows.group_spec(count=5))
    update(session, cluster, rows.group_spec(count=6))
    assert operations(session, cluster) == [
        (OperationState.DONE, {"workers"}),
        (OperationState.SUPERSEDED, {"workers"}),
        (OperationState.IN_PROGRESS, {"workers"}),
    ]
    changes.settle_operations(session, cluster, now=LATER)
    assert OperationState.IN_PROGRESS not in {state for state, _ in operations(session, cluster)}


def test_a_continuous_cluster_stays_in_service_while_it_scales(session: Session) -> None:
    cluster = in_service(session, is_continuous=True)
    update(session, cluster, rows.group_spec(count=5))
    assert (cluster.state, cluster.reconcile_at) == (ClusterState.IN_SERVICE, LATER)


@pytest.mark.parametrize("is_continuous", [True, False])
@pytest.mark.parametrize("state", [ClusterState.CREATING, ClusterState.DELETING])
def test_a_cluster_that_comes_or_goes_cannot_be_updated(session: Session, is_continuous: bool, state: ClusterState) -> None:
    cluster = rows.cluster(session, is_continuous=is_continuous, groups=(rows.group_spec("a"),))
    if state is ClusterState.DELETING:
        changes.request_deletion(session, cluster, now=NOW)
    with pytest.raises(IllegalMove):
        update(session, cluster, rows.group_spec("b"))


def test_a_failed_cluster_can_be_updated(session: Session) -> None:
    cluster = rows.cluster(session, is_continuous=True)
    rows.settle_cluster(session, cluster, ClusterState.FAILED)
    update(session, cluster, rows.group_spec(count=1))
    assert cluster.state is ClusterState.UPDATING


def test_a_rollback_returns_to_what_was_last_in_service(session: Session) -> None:
    cluster = in_service(session, groups=(rows.group_spec(count=2),))
    group = group_of(session, cluster)
    before = (group.target_count, group.min_count, group.instance_type, group.spec)
    wish = rows.group_spec(count=9, min_count=3, instance_type="ml.c5.2xlarge", spec={"InstanceCount": 9})
    update(session, cluster, wish)
    assert (group.target_count, group.instance_type) == (9, "ml.c5.2xlarge")
    changes.settle_rollback(group, now=LATER)
    session.flush()
    session.refresh(group)
    assert (group.target_count, group.min_count, group.instance_type, group.spec) == before


def test_a_rollback_ends_a_group_that_was_never_in_service(session: Session) -> None:
    cluster = rows.cluster(session)
    group = group_of(session, cluster)
    changes.settle_rollback(group, now=LATER)
    changes.settle_rollback(group, now=LATER)
    assert (group.state, group.target_count) == (GroupState.DELETING, 0)


def test_a_deletion_takes_every_group_along_and_may_be_asked_for_twice(session: Session) -> None:
    cluster = in_service(session, groups=(rows.group_spec("a"), rows.group_spec("b")))
    changes.request_deletion(session, cluster, now=LATER)
    version = cluster.version
    changes.request_deletion(session, cluster, now=LATER)
    assert {group.state for group in queries.groups(session, cluster.id)} == {GroupState.DELETING}
    assert cluster.version == version
    assert events_named(session, cluster, "deletion requested") == 1


def test_a_failed_deletion_can_be_asked_for_again(session: Session) -> None:
    cluster = rows.cluster(session)
    changes.request_deletion(session, cluster, now=NOW)
    rows.settle_cluster(session, cluster, ClusterState.FAILED)
    changes.request_deletion(session, cluster, now=NOW)
    assert cluster.state is ClusterState.DELETING


def test_a_failure_is_kept_for_people_on_the_cluster_and_in_its_events(session: Session) -> None:
    cluster = rows.cluster(session)
    changes.settle_cluster(session, cluster, ClusterState.ROLLING_BACK, why="No capacity.", now=LATER)
    event = session.scalars(select(Event).where(Event.name == "cluster rolling_back")).one()
    assert (cluster.failure_message, event.level, event.details) == ("No capacity.", "Error", {"failure": "No capacity."})


def test_tags_keep_the_order_of_first_writing(session: Session) -> None:
    changes.put_tags(session, "arn:x", {"b": "1", "a": "1"})
    changes.put_tags(session, "arn:x", {"c": "1", "b": "2"})
    changes.put_tags(session, "arn:y", {"b": "other"})
    assert [(tag.key, tag.value) for tag in queries.tags(session, "arn:x")] == [("b", "2"), ("a", "1"), ("c", "1")]
    changes.drop_tags(session, "arn:x", ["b", "absent"])
    assert [tag.key for tag in queries.tags(session, "arn:x")] == ["a", "c"]
    assert [tag.value for tag in queries.tags(session, "arn:y")] == ["other"]


def operations(session: Session, cluster: Cluster) -> list[tuple[OperationState, set[str]]]:
    """In the order of their beginning; those of one moment by how far they are."""
    session.flush()
    order = {OperationState.DONE: 0, OperationState.SUPERSEDED: 1, OperationState.IN_PROGRESS: 2}
    found = session.scalars(select(Operation).where(Operation.cluster_id == cluster.id)).all()
    return [(row.state, set(row.details)) for row in sorted(found, key=lambda row: (row.created_at, order[row.state]))]


def events_named(session: Session, cluster: Cluster, name: str) -> int:
    return len(session.scalars(select(Event.id).where(Event.cluster_id == cluster.id, Event.name == name)).all())
