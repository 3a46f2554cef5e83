"""The law of ``models.checkpoint.reports``: whatever comes twice, late, or mixed with what other nodes tell, the rows end the same.

A node's own reports come in the order in which it told them (they are numbered); what is told again may come at any time after.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from everstep.tiers import CopyStatus
from models.checkpoint import queries
from models.checkpoint.reports import Copy, Durable, Held, Saved, Tier, report_copies, report_durable, report_saved, report_tier
from models.checkpoint.states import StepState
from models.checkpoint.table import CheckpointCopy, CheckpointNamespace, CheckpointStep, MemoryTier
from models.events import Event
from models.job.table import Job
from models.node.table import Node
from tests import rows

NOW = rows.NOW
Report = Callable[[Session], None]
World = dict[str, list[Report]]


def at(seconds: float) -> Any:
    return NOW + timedelta(seconds=seconds)


def told(node: Node, step: int, save: str, status: CopyStatus, *indices: int, when: float, sealed_at: float = 0.0) -> Report:
    copies = [Copy(index, status, 100 + index, f"{save}{index}") for index in indices]
    held = Held(rows_namespace, step, save, 2 if 2 in indices else None, copies, at(sealed_at or when), at(when))
    return partial(report_copies, node=node, held=held, now=NOW)


rows_namespace = "ns"


def tier(node: Node, when: float, **changes: Any) -> Report:
    facts = {"plan": 1, "allocated_bytes": 100, "used_bytes": int(when), "backlog_bytes": 0, "waiting_since": None}
    facts |= {"outage": None, "refusals": 0, "note": None}
    return partial(report_tier, node=node, told=Tier(**(facts | changes), at=at(when)), now=NOW)


def history(job: Job, one: Node, other: Node) -> World:
    """Two nodes hold step 10, which is drained, saved anew after training went back, and drained again; step 20 is given up; a copy rots."""
    sealed, dropped, corrupt = CopyStatus.SEALED, CopyStatus.DROPPED, CopyStatus.CORRUPT
    durable = partial(Durable, rows_namespace, 10, world_size=2)
    return {
        "one": [
            told(one, 10, "a", sealed, 0, 2, when=1),
            told(one, 10, "a", sealed, 1, when=2),
            tier(one, 3, outage="503"),
            told(one, 20, "b", sealed, 0, 2, when=20),
            told(one, 20, "b", dropped, 0, 2, when=30),
            told(one, 10, "c", sealed, 0, 2, when=40),
            told(one, 10, "a", dropped, 0, 1, 2, when=40.5),
            told(one, 10, "c", sealed, 0, 2, when=50, sealed_at=40),
            tier(one, 51, refusals=2),
        ],
        "other": [
            told(other, 10, "a", sealed, 0, 1, 2, when=3, sealed_at=2),
            told(other, 20, "b", sealed, 1, when=21),
            told(other, 20, "b", corrupt, 1, when=31),
            told(other, 10, "a", dropped, 0, 1, 2, when=41),
            told(other, 10, "c", sealed, 1, when=42),
            tier(other, 43),
        ],
        "drains of one": [
            partial(
                report_durable, cluster_id=one.cluster_id, told=durable(save="a", nbytes=7, is_withdrawn=False, at=at(5)), now=NOW
            ),
            partial(
                report_durable, cluster_id=one.cluster_id, told=durable(save="c", nbytes=9, is_withdrawn=False, at=at(45)), now=NOW
            ),
        ],
        "discard of other": [
            partial(
                report_durable, cluster_id=one.cluster_id, told=durable(save="a", nbytes=7, is_withdrawn=True, at=at(39)), now=NOW
            )
        ],
        "rank 0": [
            partial(report_saved, job=job, told=Saved(10, 0.1, 1.0, 300, 10, 50, "first"), now=NOW),
            partial(report_saved, job=job, told=Saved(20, 0.2, 2.0, 300, 20, 100, None), now=NOW),
            partial(report_saved, job=job, told=Saved(30, 0.3, 3.0, 300, 20, 100, "second"), now=NOW),
        ],
    }


@pytest.fixture
def job(session: Session) -> Job:
    job = rows.job(session, rows.cluster(session))
    rows.namespace(session, job, rows_namespace)
    return job


@pytest.fixture
def world(session: Session, job: Job) -> World:
    one, other = rows.nodes(session, session.get_one(rows.Cluster, job.cluster_id), 2)
    session.commit()
    return history(job, one, other)


@pytest.fixture
def in_order(session: Session, world: World) -> dict[str, Any]:
    return end_of(session, [report for told in world.values() for report in told])


def end_of(session: Session, reports: list[Report]) -> dict[str, Any]:
    """The rows after these reports, which are then taken back."""
    with session.begin_nested() as attempt:
        for report in reports:
            report(session)
        session.flush()
        session.expire_all()
        found = {
            table.__tablename__: [columns(row) for row in session.scalars(select(table).order_by(*inspect(table).primary_key))]
            for table in (CheckpointNamespace, CheckpointStep, CheckpointCopy, MemoryTier)
        }
        attempt.rollback()
    session.expire_all()
    return found


def columns(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in inspect(type(row)).column_attrs.keys() if name != "reconcile_at"}  # noqa: SIM118


@st.composite
def interleaved(draw: st.DrawFn, world: World) -> list[Report]:
    """Each speaker in its own order, mixed with the others, and now and then something told before is told again."""
    left = {name: list(told) for name, told in world.items()}
    order: list[Report] = []
    while any(left.values()):
        speaker = draw(st.sampled_from(sorted(name for name, told in left.items() if told)))
        order.append(left[speaker].pop(0))
        if draw(st.booleans()):
            order.append(draw(st.sampled_from(order)))
    return order


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_reports_that_come_twice_late_or_mixed_end_in_the_same_rows(
    session: Session, world: World, in_order: dict[str, Any], data: st.DataObject
) -> None:
    assert end_of(session, data.draw(interleaved(world))) == in_order


def test_the_history_in_order_ends_as_it_should(session: Session, world: World, job: Job) -> None:
    for report in (report for told in world.values() for report in told):
        report(session)
    again, given_up = (queries.get(session, rows_namespace, step) for step in (10, 20))
    assert (again.save, again.durable_save, again.durable_at, again.world_size) == ("c", "c", at(45), 2)
    assert (given_up.save, given_up.durable_at, given_up.state) == ("b", None, StepState.KEPT)
    held = queries.in_memory(session, [again.id, given_up.id])
    assert held[again.id].is_complete
    assert (held[again.id].shards, held[again.id].copies, held[again.id].nbytes) == (3, 3, 303)
    assert given_up.id not in held
    newest = queries.newest(session, rows_namespace)
    assert (newest.in_memory, newest.durable, newest.step) == (10, 10, 10)
    namespace = queries.of_job(session, job.id)
    assert (namespace.memory_every, namespace.why, namespace.stall_s) == (20, "second", 0.3)
    names = [event.name for event in session.scalars(select(Event).where(Event.about.in_(("Job", "Instance"))))]
    for name in ("copy corrupt", "object store out", "object store reached again", "memory tier full"):
        assert names.count(name) == 1, name
    assert names.count("checkpoint interval") == 2
