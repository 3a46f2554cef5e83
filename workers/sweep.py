"""The sweep: rows whose time has come are asked for again. Losing every message costs as long as one sweep takes to come by."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import exists, literal, select, union_all

from models.node import queries as nodes
from models.node.liveness import suspicious_silence
from models.node.table import Node
from models.session import unit_of_work
from workers.plane import Plane

_BATCH = 500


def sweep(plane: Plane, kind: str, ask: Callable[[str, str], None]) -> int:
    """Asks for the reconciliation of every row of a kind that is due; returns how many there were."""
    ids = plane.driver.due(kind, limit=_BATCH)
    if kind == Node.KIND:
        ids += _silent(plane)
    for row_id in ids:
        ask(kind, row_id)
    return len(ids)


def ripe_kinds(plane: Plane) -> list[str]:
    """The kinds of which some row is due, by one statement: cheap enough to ask several times a second."""
    now = plane.clock.now()
    asked = [
        select(literal(kind)).where(exists().where(reconciler.TABLE.reconcile_at <= now))
        for kind, reconciler in plane.driver.reconcilers.items()
    ]
    with unit_of_work(plane.sessions) as session:
        return list(session.scalars(union_all(*asked)))


def _silent(plane: Plane) -> list[str]:
    """Nodes without a beat. Found by one query over all of them: a timer for each would cost a reconciliation a node every few seconds."""
    with unit_of_work(plane.sessions) as session:
        return nodes.silent(session, before=plane.clock.now() - suspicious_silence(nodes.population(session)), limit=_BATCH)
