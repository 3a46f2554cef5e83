"""The loop, with a reconciler of the tests' own on real rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from sqlalchemy import text

from models.cluster.table import Cluster
from models.lease import take
from models.move import wake
from models.notify import NUDGE
from models.session import unit_of_work
from tests import rows
from tests.workers.small_plane import TestClock
from workers.driver import Driver, pause
from workers.plans.decision import Decision
from workers.providers.base import Throttled


@dataclass
class Probe:
    """Notes what it is asked to do; ``during`` is called while it acts or, acting nowhere, while it settles."""

    during: Any = None
    again_in: timedelta | None = None
    actions: tuple = ("work",)
    calls: list = field(default_factory=list)
    ACTS_OUTSIDE: bool = False
    SPAN: timedelta = timedelta(seconds=10)

    TABLE: ClassVar[Any] = Cluster

    def observe(self, session, row_id, _now):
        self.calls.append("observe")
        return session.get(Cluster, row_id)

    def plan(self, _seen, _now):
        return Decision(self.actions, self.again_in)

    def act(self, _seen, action):
        self.calls.append("act")
        if self.during:
            self.during()
        return f"did {action}"

    def settle(self, session, row_id, results, _now):
        self.calls.append(results)
        session.get_one(Cluster, row_id).failure_message = str(results)
        if self.during and not self.ACTS_OUTSIDE:
            self.during()


@pytest.fixture
def cluster_id(sessions):
    with unit_of_work(sessions) as session:
        return rows.cluster(session).id


@pytest.fixture
def clock():
    return TestClock()


@pytest.fixture
def make(sessions, clock):
    def make(**changes) -> tuple[Driver, Probe]:
        probe = Probe(**changes)
        return Driver(sessions, clock, "worker-1", {"cluster": probe}), probe

    return make


@pytest.fixture
def row(sessions, cluster_id):
    def row() -> Cluster:
        with unit_of_work(sessions) as session:
            return session.get_one(Cluster, cluster_id)

    return row


def await_renewal(row, until) -> None:
    deadline = time.monotonic() + 10
    while row().lease_until == until:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_step_is_settled_and_the_row_is_looked_at_again_when_the_plan_says(make, row, cluster_id, clock, is_outside):
    driver, probe = make(again_in=timedelta(seconds=7), ACTS_OUTSIDE=is_outside)
    driver.reconcile("cluster", cluster_id)
    done = ("did work",) if is_outside else ("work",)
    assert probe.calls == ["observe", *(["act"] if is_outside else []), done]
    assert row().reconcile_at == clock.now() + timedelta(seconds=7)
    assert row().lease_until is None
    assert row().attempts == 0


def test_a_plan_without_actions_settles_nothing(make, row, cluster_id):
    driver, probe = make(actions=())
    driver.reconcile("cluster", cluster_id)
    assert probe.calls == ["observe"]
    assert row().reconcile_at is None


def test_a_row_that_does_not_exist_is_nothing_to_do(make):
    driver, probe = make()
    driver.reconcile("cluster", "none")
    assert probe.calls == []


@pytest.mark.parametrize("said_s", [45, None])
def test_a_row_whose_provider_was_asked_too_often_rests_for_as_long_as_that_says(make, row, cluster_id, clock, said_s):
    throttled = Throttled("asked too often", None if said_s is None else timedelta(seconds=said_s))

    def fail():
        raise throttled

    driver, _ = make(during=fail, ACTS_OUTSIDE=True)
    for _ in range(2):
        driver.reconcile("cluster", cluster_id)
        assert row().reconcile_at == clock.now() + throttled.rest
        clock.at += throttled.rest
    assert throttled.rest == timedelta(seconds=said_s or 10)


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_failure_writes_nothing_and_is_tried_again_ever_more_slowly(make, row, cluster_id, clock, is_outside):
    def fail():
        raise OSError("no route to host")

    driver, _ = make(during=fail, ACTS_OUTSIDE=is_outside)
    for attempt in (1, 2, 3):
        driver.reconcile("cluster", cluster_id)
        assert row().attempts == attempt
        assert row().reconcile_at == clock.now() + pause(attempt)
        assert row().failure_message is None
        clock.at += pause(attempt)
    assert pause(3) > pause(2) > pause(1)
    assert pause(1000) == pause(999)


def test_while_it_acts_outside_it_holds_no_transaction(make, sessions, cluster_id):
    seen = []

    def look():
        with unit_of_work(sessions) as session:
            idle = text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
            )
            seen.append(session.scalar(idle))

    driver, _ = make(during=look, ACTS_OUTSIDE=True)
    driver.reconcile("cluster", cluster_id)
    assert seen == [0]


def test_what_a_stale_worker_found_out_is_dropped(make, sessions, row, cluster_id, clock):
    def overtaken():
        clock.at += timedelta(seconds=11)
        with unit_of_work(sessions) as session:
            assert take(session, Cluster, cluster_id, owner="worker-2", now=clock.now(), span=timedelta(seconds=10))

    driver, _ = make(during=overtaken, ACTS_OUTSIDE=True)
    driver.reconcile("cluster", cluster_id)
    assert row().failure_message is None
    assert row().lease_owner == "worker-2"


def test_a_call_that_meets_a_lease_leaves_word_so_that_another_look_comes_after_it(make, sessions, row, cluster_id, clock, listen):
    other, idle = make()
    driver, _probe = make(during=lambda: other.reconcile("cluster", cluster_id), ACTS_OUTSIDE=True)
    ear = listen(NUDGE)
    driver.reconcile("cluster", cluster_id)
    assert idle.calls == []
    assert ear.heard() == [f"cluster:{cluster_id}"]
    assert row().reconcile_at == clock.now()


def test_a_row_that_is_woken_while_it_is_worked_on_is_looked_at_once_more(make, sessions, row, cluster_id, clock, listen):
    def news():
        with unit_of_work(sessions) as session:
            wake(session, session.get_one(Cluster, cluster_id), now=clock.now())

    driver, _ = make(during=news, again_in=timedelta(hours=1), ACTS_OUTSIDE=True)
    driver.reconcile("cluster", cluster_id)
    assert row().reconcile_at == clock.now()


def test_a_lease_is_renewed_while_a_call_outside_lasts(make, sessions, row, cluster_id, clock):
    """The renewal counts in real time; what it writes is in the clock's."""

    def long_call():
        until = row().lease_until
        clock.at += timedelta(seconds=9)
        await_renewal(row, until)
        clock.at += timedelta(seconds=9)

    driver, probe = make(during=long_call, again_in=timedelta(seconds=7), ACTS_OUTSIDE=True, SPAN=timedelta(seconds=0.3))
    driver.reconcile("cluster", cluster_id)
    assert probe.calls[-1] == ("did work",)
    assert row().reconcile_at == clock.now() + timedelta(seconds=7)


def test_a_long_call_that_fails_rests_as_long_as_a_short_one(make, row, cluster_id, clock):
    """Calls that end by a time-out are those which most need the rest."""

    def long_call():
        until = row().lease_until
        clock.at += timedelta(seconds=0.1)
        await_renewal(row, until)
        raise OSError("timed out")

    driver, _ = make(during=long_call, ACTS_OUTSIDE=True, SPAN=timedelta(seconds=0.3))
    driver.reconcile("cluster", cluster_id)
    assert row().reconcile_at == clock.now() + pause(1)


def test_a_lease_whose_worker_died_runs_out(make, sessions, cluster_id, clock):
    with unit_of_work(sessions) as session:
        assert take(session, Cluster, cluster_id, owner="dead", now=clock.now(), span=timedelta(seconds=10))
    driver, probe = make()
    driver.reconcile("cluster", cluster_id)
    assert probe.calls == []
    clock.at += timedelta(seconds=10)
    driver.reconcile("cluster", cluster_id)
    assert probe.calls[0] == "observe"


def test_due_rows_are_those_whose_time_has_come_and_they_come_up_again_if_nobody_takes_them(make, cluster_id, clock):
    driver, _ = make(again_in=timedelta(seconds=30))
    assert driver.due("cluster") == [cluster_id]
    assert driver.due("cluster") == []
    clock.at += timedelta(seconds=5)
    assert driver.due("cluster") == [cluster_id]
    driver.reconcile("cluster", cluster_id)
    clock.at += timedelta(seconds=29)
    assert driver.due("cluster") == []
    clock.at += timedelta(seconds=1)
    assert driver.due("cluster") == [cluster_id]


def test_a_leased_row_is_not_due(make, sessions, cluster_id, clock):
    driver, _ = make()
    with unit_of_work(sessions) as session:
        assert take(session, Cluster, cluster_id, owner="worker-2", now=clock.now(), span=timedelta(seconds=10))
        wake(session, session.get_one(Cluster, cluster_id), now=clock.now())
    assert driver.due("cluster") == []
