"""What two transactions do to the same rows at once: nobody concludes from what was so before he waited, and nobody waits in a circle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from models.cluster import queries as clusters
from models.cluster.changes import request_deletion
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.condition.changes import Finding, report_fault
from models.condition.states import FaultClass
from models.job import queries as jobs
from models.job.changes import settle_processes
from models.job.reports import report_process
from models.job.states import ProcessState
from models.job.table import Job, JobProcess
from models.node import queries as nodes
from models.node.table import Node
from models.notify import NUDGE
from models.session import locked, unit_of_work
from models.software import queries as software
from models.software.changes import GroupWish, request_software
from models.software.table import SoftwareUpdate
from tests import rows
from tests.workers.small_plane import SmallPlane
from workers.plans import software as plans
from workers.plans.repair_seen import RestartProcess
from workers.reconcilers.node import NodeReconciler
from workers.reconcilers.software import SoftwareReconciler


def updating(plane: SmallPlane, *counts: int) -> tuple[str, str]:
    """A cluster whose groups are asked to go to another release, and the update."""
    with unit_of_work(plane.sessions) as session:
        groups = tuple(rows.group_spec(f"g{number}", count) for number, count in enumerate(counts))
        cluster_id = rows.cluster(session, groups=groups, is_continuous=True).id
    plane.run_until(lambda: plane.states()["group"] == ["in_service"] * len(counts) and len(plane.nodes(cluster_id)) == sum(counts))
    plane.run(5)
    with unit_of_work(plane.sessions) as session:
        cluster = clusters.get(session, cluster_id, lock=True)
        wishes = [GroupWish(group, "2.0.0") for group in clusters.groups(session, cluster_id)]
        update = request_software(session, cluster, wishes, cause="a test", now=plane.clock.at)
    return cluster_id, update.id


class SlowPlane(SmallPlane):
    """Software updates take a step when they are told to, as long as they are held."""

    is_held = True

    def reconcile(self, kind: str, row_id: str) -> None:
        if not (self.is_held and kind == SoftwareUpdate.KIND):
            super().reconcile(kind, row_id)

    def planned(self, update_id: str) -> tuple[plans.Action, ...]:
        reconciler = SoftwareReconciler()
        with self.sessions() as session:
            return reconciler.plan(reconciler.observe(session, update_id, self.clock.at), self.clock.at).actions


@contextmanager
def meanwhile(plane: SmallPlane, update_id: str) -> Iterator[None]:
    """The block begins when a step with this update waits for a lock that somebody holds; the step ends with it."""
    with waiting(plane, lambda: plane.driver.reconcile(SoftwareUpdate.KIND, update_id)):
        yield


@contextmanager
def waiting(plane: SmallPlane, work: Callable[[], None]) -> Iterator[None]:
    """The block begins when the work waits for a lock that somebody holds; the work ends with it."""
    step = threading.Thread(target=work)
    step.start()
    deadline = time.monotonic() + 10
    waiters = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    while not _count(plane, waiters):
        assert time.monotonic() < deadline, "nobody waits"
    yield
    step.join(10)
    assert not step.is_alive()


def _count(plane: SmallPlane, statement) -> int:
    with unit_of_work(plane.sessions) as session:
        return session.scalar(statement)


@pytest.fixture
def slow(sessions, listen) -> SlowPlane:
    return SlowPlane(sessions, listen(NUDGE))


@pytest.mark.parametrize("action", [plans.StartBatch, plans.End])
def test_a_deletion_that_meets_a_step_of_a_software_update_ends_with_the_cluster_deleted(slow, caplog, action):
    cluster_id, update_id = updating(slow, 1)
    while not any(isinstance(one, action) for one in slow.planned(update_id)):
        slow.driver.reconcile(SoftwareUpdate.KIND, update_id)
        slow.run(0.5)
    with slow.sessions() as session:
        cluster = clusters.get(session, cluster_id, lock=True)
        request_deletion(session, cluster, now=slow.clock.at)
        session.flush()
        with meanwhile(slow, update_id):
            session.commit()
    slow.is_held = False
    slow.run_until(lambda: slow.cluster_state(cluster_id) is ClusterState.DELETED)
    slow.run(5)
    assert not _is_open(slow, cluster_id)
    assert slow.provider.hosts() == ()
    assert not [record for record in caplog.records if record.name == "workers.driver" and record.levelno >= logging.ERROR]


def test_a_software_update_of_two_groups_locks_its_nodes_in_one_order(plane):
    cluster_id, update_id = updating(plane, 6, 6)
    plane.reconcile(SoftwareUpdate.KIND, update_id)
    ids = sorted(node.id for node in plane.nodes(cluster_id))
    with plane.sessions() as session:
        session.execute(locked(select(Node.id).where(Node.id == ids[5])))
        with meanwhile(plane, update_id):
            later = select(Node.id).where(Node.id.in_(ids[6:])).with_for_update(key_share=True, skip_locked=True)
            free = session.scalars(later).all()
            session.commit()
    assert sorted(free) == ids[6:]
    plane.run_until(lambda: not _is_open(plane, cluster_id))


def test_restarts_of_processes_of_several_jobs_lock_their_jobs_in_one_order(plane):
    (node,) = plane.nodes(plane.serving(1))
    with unit_of_work(plane.sessions) as session:
        cluster = session.get_one(Cluster, node.cluster_id)
        first, last = sorted(rows.job(session, cluster, name).id for name in ("one", "other"))
        actions = [_struck(session, node, job_id, pid) for pid, job_id in enumerate((last, first), start=4242)]

    def step() -> None:
        with unit_of_work(plane.sessions) as session:
            nodes.get(session, node.id, lock=True)
            NodeReconciler().settle(session, node.id, tuple(actions), plane.clock.at)

    with plane.sessions() as session:
        jobs.get(session, first, lock=True)
        with waiting(plane, step):
            free = session.scalars(select(Job.id).where(Job.id == last).with_for_update(key_share=True, skip_locked=True)).all()
            session.commit()
    assert free == [last]
    with unit_of_work(plane.sessions) as session:
        assert {process.state for process in session.query(JobProcess)} == {ProcessState.LOST}


def _struck(session: Session, node: Node, job_id: str, pid: int) -> RestartProcess:
    """A process of the job on the node has been struck by something of its own."""
    (process,) = settle_processes(session, jobs.get(session, job_id, lock=True), [(node.id, 0)], now=rows.NOW)
    report_process(session, process.id, ProcessState.READY, pid=pid, now=rows.NOW)
    told = {"code": f"xid:{pid}", "type": "Contained", "reason": "Contained", "evidence": f"pid={pid}", "at": rows.NOW, "pid": pid}
    row = report_fault(session, nodes.get(session, node.id, lock=True), Finding(job_id, FaultClass.TRANSIENT, **told), now=rows.NOW)
    return RestartProcess(row.id, "It was struck.")


def _is_open(plane: SmallPlane, cluster_id: str) -> bool:
    with unit_of_work(plane.sessions) as session:
        return software.open_of_cluster(session, cluster_id) is not None
