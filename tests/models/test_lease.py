from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from models import lease
from models.cluster import queries
from models.cluster.states import CLUSTER, ClusterState
from models.cluster.table import Cluster
from models.errors import StaleLease
from models.lease import Lease
from models.move import move, wake
from models.node.table import Host, Node
from models.notify import NUDGE
from models.session import Sessions, unit_of_work
from tests import rows
from tests.postgres import Ear

NOW = rows.NOW
SPAN = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


def taken(session: Session, row_id: str, *, now=NOW, owner: str = "w1") -> Lease:
    given = lease.take(session, Cluster, row_id, owner=owner, now=now, span=SPAN)
    assert given is not None
    return given


def test_a_lease_belongs_to_one_worker_until_it_expires(session: Session) -> None:
    row = rows.cluster(session)
    first = taken(session, row.id)
    assert lease.take(session, Cluster, row.id, owner="w2", now=NOW + SPAN - SECOND, span=SPAN) is None
    second = taken(session, row.id, now=NOW + SPAN, owner="w2")
    assert second.token == first.token + 1


def test_nobody_leases_a_row_that_does_not_exist(session: Session) -> None:
    assert lease.take(session, Cluster, "nothing", owner="w1", now=NOW, span=SPAN) is None


def test_attempts_are_counted_before_the_work_and_forgotten_after_success(session: Session) -> None:
    row = rows.cluster(session)
    assert taken(session, row.id).attempts == 1
    second = taken(session, row.id, now=NOW + SPAN)
    assert second.attempts == 2
    lease.settle(session, Cluster, second, again_at=None)
    assert taken(session, row.id, now=NOW + SPAN).attempts == 1


def test_a_settled_row_is_looked_at_again_when_its_plan_says(session: Session) -> None:
    row = rows.cluster(session)
    lease.settle(session, Cluster, taken(session, row.id), again_at=NOW + 5 * SECOND)
    session.refresh(row)
    assert (row.reconcile_at, row.lease_owner, row.lease_until) == (NOW + 5 * SECOND, None, None)


def test_a_row_whose_worker_died_is_due_once_the_lease_has_expired(session: Session) -> None:
    row = rows.cluster(session)
    taken(session, row.id)
    session.refresh(row)
    assert NOW + SPAN <= row.reconcile_at <= NOW + SPAN + timedelta(milliseconds=1)


@pytest.mark.parametrize("after", [timedelta(0), timedelta(microseconds=1), SECOND, SPAN, SPAN + SECOND], ids=str)
def test_a_row_that_was_woken_meanwhile_is_looked_at_again_at_once(
    sessions: Sessions, listen: Callable[..., Ear], after: timedelta
) -> None:
    with unit_of_work(sessions) as session:
        row = rows.cluster(session)
        given = taken(session, row.id)
    with unit_of_work(sessions) as session:
        wake(session, queries.find(session, "c1", lock=True), now=NOW + after)
    ear = listen(NUDGE)
    with unit_of_work(sessions) as session:
        lease.settle(session, Cluster, given, again_at=None)
    assert ear.heard() == [f"cluster:{row.id}"]
    with sessions() as session:
        assert queries.find(session, "c1").reconcile_at == NOW + after


def test_a_row_that_nobody_woke_is_not_nudged(sessions: Sessions, listen: Callable[..., Ear]) -> None:
    with unit_of_work(sessions) as session:
        given = taken(session, rows.cluster(session).id)
    ear = listen(NUDGE)
    with unit_of_work(sessions) as session:
        lease.settle(session, Cluster, given, again_at=NOW)
    assert ear.heard(within_s=0.2) == []


def test_a_row_that_its_own_worker_moved_is_looked_at_again(session: Session) -> None:
    row = rows.cluster(session)
    given = taken(session, row.id)
    lease.check(session, Cluster, given)
    move(session, CLUSTER, queries.find(session, "c1", lock=True), ClusterState.IN_SERVICE, now=NOW + SECOND)
    lease.settle(session, Cluster, given, again_at=None)
    session.refresh(row)
    assert (row.state, row.reconcile_at) == (ClusterState.IN_SERVICE, NOW + SECOND)


def test_a_row_that_came_to_its_end_rests(session: Session) -> None:
    row = rows.cluster(session)
    given = taken(session, row.id)
    mine = queries.find(session, "c1", lock=True)
    move(session, CLUSTER, mine, ClusterState.DELETING, now=NOW)
    move(session, CLUSTER, mine, ClusterState.DELETED, now=NOW)
    lease.settle(session, Cluster, given, again_at=NOW)
    session.refresh(row)
    assert row.reconcile_at is None


def test_what_a_stale_worker_found_out_is_dropped(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        row = rows.cluster(session)
        stale = taken(session, row.id)
    with unit_of_work(sessions) as session:
        taken(session, row.id, now=NOW + SPAN, owner="w2")

    def conclude() -> None:
        with unit_of_work(sessions) as session:
            move(session, CLUSTER, queries.find(session, "c1", lock=True), ClusterState.IN_SERVICE, now=NOW)
            lease.settle(session, Cluster, stale, again_at=None)

    with pytest.raises(StaleLease):
        conclude()
    with sessions() as session:
        found = queries.find(session, "c1")
        assert (found.state, found.lease_owner) == (ClusterState.CREATING, "w2")


def test_a_lease_on_a_row_that_is_gone_is_stale(session: Session) -> None:
    with pytest.raises(StaleLease):
        lease.check(session, Cluster, Lease("cluster", "nothing", 1, 1, NOW))


def test_a_failed_attempt_is_repeated_later_and_stays_counted(session: Session) -> None:
    row = rows.cluster(session)
    lease.give_back(session, Cluster, taken(session, row.id), again_at=NOW + 7 * SECOND)
    session.refresh(row)
    assert (row.reconcile_at, row.attempts, row.lease_owner) == (NOW + 7 * SECOND, 1, None)


def test_a_failed_attempt_may_be_put_off_beyond_its_lease(session: Session) -> None:
    row = rows.cluster(session)
    lease.give_back(session, Cluster, taken(session, row.id), again_at=NOW + 10 * SPAN)
    session.refresh(row)
    assert row.reconcile_at == NOW + 10 * SPAN


def test_a_row_that_was_woken_while_the_attempt_failed_does_not_wait(session: Session) -> None:
    row = rows.cluster(session)
    given = taken(session, row.id)
    wake(session, queries.find(session, "c1", lock=True), now=NOW + SECOND)
    lease.give_back(session, Cluster, given, again_at=NOW + 7 * SECOND)
    session.refresh(row)
    assert row.reconcile_at == NOW + SECOND


def test_a_stale_worker_gives_nothing_back(session: Session) -> None:
    row = rows.cluster(session)
    stale = taken(session, row.id)
    taken(session, row.id, now=NOW + SPAN, owner="w2")
    lease.give_back(session, Cluster, stale, again_at=NOW)
    session.refresh(row)
    assert row.lease_owner == "w2"


def test_whoever_meets_a_lease_leaves_word_for_its_holder(session: Session) -> None:
    row = rows.cluster(session)
    given = taken(session, row.id)
    assert lease.remind(session, Cluster, row.id, now=NOW + SECOND)
    lease.settle(session, Cluster, given, again_at=None)
    session.refresh(row)
    assert row.reconcile_at == NOW + SECOND


def test_nobody_is_there_to_be_reminded_of_a_free_row(session: Session) -> None:
    row = rows.cluster(session)
    assert not lease.remind(session, Cluster, row.id, now=NOW)
    taken(session, row.id)
    assert not lease.remind(session, Cluster, row.id, now=NOW + SPAN)
    assert not lease.remind(session, Cluster, "nothing", now=NOW)


def test_a_sweep_finds_free_rows_whose_time_has_come_the_longest_due_first(session: Session) -> None:
    late, soon, held, later, resting = (rows.cluster(session, f"c{number}") for number in range(5))
    late.reconcile_at, soon.reconcile_at, later.reconcile_at, resting.reconcile_at = NOW, NOW + SECOND, NOW + 9 * SECOND, None
    taken(session, held.id)
    session.flush()
    found = lease.due(session, Cluster, now=NOW + 2 * SECOND, again_at=NOW + 7 * SECOND, limit=10)
    assert found == [late.id, soon.id]
    assert lease.due(session, Cluster, now=NOW + 3 * SECOND, again_at=NOW + 8 * SECOND, limit=10) == []
    assert set(lease.due(session, Cluster, now=NOW + 7 * SECOND, again_at=NOW + 12 * SECOND, limit=1)) < {late.id, soon.id}


def test_a_sweep_finds_the_row_of_a_worker_that_died(session: Session) -> None:
    row = rows.cluster(session)
    taken(session, row.id)
    assert lease.due(session, Cluster, now=NOW + SPAN - SECOND, again_at=NOW, limit=10) == []
    assert lease.due(session, Cluster, now=NOW + SPAN + SECOND, again_at=NOW + 2 * SPAN, limit=10) == [row.id]


def test_two_sweeps_at_once_share_the_rows(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        ids = {rows.cluster(session, f"c{number}").id for number in range(6)}
    with unit_of_work(sessions) as one, unit_of_work(sessions) as other:
        first = lease.due(one, Cluster, now=NOW + SECOND, again_at=NOW + SPAN, limit=4)
        second = lease.due(other, Cluster, now=NOW + SECOND, again_at=NOW + SPAN, limit=4)
    assert (len(first), len(second)) == (4, 2)
    assert {*first, *second} == ids


def test_a_nodes_host_has_a_lease_of_its_own(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    host = lease.take(session, Host, node.id, owner="slow", now=NOW, span=SPAN)
    own = lease.take(session, Node, node.id, owner="fast", now=NOW, span=SPAN)
    assert host is not None
    assert own is not None
    session.refresh(node)
    assert (node.lease_owner, node.host_lease_owner) == ("fast", "slow")
    lease.settle(session, Host, host, again_at=NOW + SECOND)
    session.refresh(node)
    assert (node.lease_owner, node.host_lease_owner, node.host_reconcile_at) == ("fast", None, NOW + SECOND)


def test_of_two_workers_that_race_one_gets_the_lease(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        row_id = rows.cluster(session).id
    for turn in range(10):
        now = NOW + turn * SPAN
        start = threading.Barrier(4)
        won: list[Lease | None] = []

        def race(owner: str, start: threading.Barrier = start, won: list[Lease | None] = won, now=now) -> None:
            start.wait(timeout=10)
            with unit_of_work(sessions) as session:
                won.append(lease.take(session, Cluster, row_id, owner=owner, now=now, span=SPAN))

        workers = [threading.Thread(target=race, args=(f"w{number}",)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=20)
        assert len(won) == 4
        assert [given.token for given in won if given is not None] == [turn + 1]
