"""Use-cases of faults: things are broken on purpose, by the agents of real nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.operations.work import Work
from models.cluster import queries as clusters
from models.errors import Invalid, NotFound, Unsupported
from models.fault import changes, queries
from models.fault.changes import FaultWish
from models.fault.states import FAULT, FaultKind
from models.fault.table import Fault
from models.job import queries as jobs
from models.node import queries as nodes
from models.node.states import NodeState
from models.node.table import Node
from models.paging import Cut, Page

LATER: Final[Mapping[str, str]] = {
    "xid": "There is no accelerator driver to report one yet; kill-rank ends a process as an Xid would.",
    "spot-notice": "The local provider gives no notice; kill-node takes a node without one.",
    "spot-reclaim": "kill-node takes a node as its provider would.",
    "partition": "hang-rank makes a rank silent while its connections stay open.",
    "slow-node": "hang-rank with --seconds delays a rank once.",
    "corrupt-shard": "There are no durable shards yet.",
    "bucket-outage": "There are no durable checkpoints yet.",
}
"""Kinds that are not there yet, and what to do instead."""
LASTING: Final = frozenset({FaultKind.HANG_RANK})


@dataclass(frozen=True)
class Injection:
    kind: str
    target: str
    seconds: float | None


@dataclass(frozen=True)
class FaultView:
    """``is_node_gone``: what was to be struck went with its node."""

    fault: Fault
    instance_id: str | None
    is_node_gone: bool


def inject(work: Work, asked: Injection) -> FaultView:
    """Asks the node's agent to strike.

    Raises:
        Unsupported: a kind that is not there yet.
        Invalid: an unknown kind, a target of the wrong form, or one that there is nothing to strike at.
        NotFound: no such job or instance.
        Forbidden: a node of a cluster that the caller may not change.
    """
    if asked.kind in LATER:
        raise Unsupported(member=f"The fault '{asked.kind}'", remedy=LATER[asked.kind])
    try:
        kind = FaultKind(asked.kind)
    except ValueError as error:
        raise Invalid(message=f"Kind: there is no fault '{asked.kind}'; there are {', '.join(FaultKind)}.") from error
    if asked.seconds is not None and kind not in LASTING:
        raise Invalid(message=f"Seconds: {kind} strikes once and does not last; leave it out.")
    wish = _node(work, asked) if kind is FaultKind.KILL_NODE else _rank(work, kind, asked)
    fault = changes.request_fault(work.session, wish, by=work.caller.name, now=work.now)
    return FaultView(fault, wish.instance_id, is_node_gone=False)


def listed(work: Work, cut: Cut, *, job_id: str | None, live_only: bool) -> Page[FaultView]:
    """Faults in the order in which they were asked for. Raises NotFound for a job that does not exist."""
    if job_id is not None:
        jobs.get(work.session, job_id)
    found = queries.listed(work.session, cut, job_id=job_id, live_only=live_only)
    return Page(tuple(_views(work.session, found.rows)), found.cursor)


def clear(work: Work, fault_id: str) -> FaultView:
    """Ends a fault that lasts, and takes back one that has not struck. Raises NotFound."""
    view = _views(work.session, (queries.get(work.session, fault_id, lock=True),))[0]
    changes.request_clear(work.session, view.fault, is_node_gone=view.is_node_gone, now=work.now)
    return replace(view, is_node_gone=False)


def _rank(work: Work, kind: FaultKind, asked: Injection) -> FaultWish:
    job_id, slash, word = asked.target.rpartition("/")
    if not slash or not word.isascii() or not word.isdigit():
        raise Invalid(message=f"Target: {kind} takes JOB_ID/RANK, not '{asked.target}'.")
    job = jobs.get(work.session, job_id)
    playing = {
        process.rank: process for process in jobs.processes(work.session, job.id, alive_only=True) if process.rank is not None
    }
    process = playing.get(int(word))
    if process is None or process.pid is None:
        there = ", ".join(str(rank) for rank in sorted(playing)) or "none"
        raise Invalid(message=f"Target: no process of {job_id} plays rank {word} now; the ranks that are played: {there}.")
    node = nodes.get(work.session, process.node_id)
    return FaultWish(
        kind=kind,
        target=asked.target,
        cluster_id=job.cluster_id,
        node_id=node.id,
        instance_id=node.instance_id,
        group_name=node.group_name,
        job_id=job.id,
        process_id=process.id,
        seconds=asked.seconds,
    )


def _node(work: Work, asked: Injection) -> FaultWish:
    """A node is everybody's who may use its cluster: who kills one must be allowed to change that."""
    node = nodes.by_instance(work.session, asked.target)
    if node.state in (NodeState.REQUESTED, NodeState.GONE):
        raise NotFound(kind="Instance", name=asked.target)
    clusters.find(work.session, clusters.get(work.session, node.cluster_id).name, lock=True)
    return FaultWish(
        kind=FaultKind.KILL_NODE,
        target=asked.target,
        cluster_id=node.cluster_id,
        node_id=node.id,
        instance_id=node.instance_id,
        group_name=node.group_name,
    )


def _views(session: Session, faults: tuple[Fault, ...]) -> list[FaultView]:
    known = {node.id: node for node in session.scalars(select(Node).where(Node.id.in_({fault.node_id for fault in faults})))}
    return [_view(fault, known.get(fault.node_id)) for fault in faults]


def _view(fault: Fault, node: Node | None) -> FaultView:
    """A node that the caller does not see any more is another team's now: of its instance nothing is told."""
    is_gone = node is None or node.state is NodeState.GONE
    return FaultView(fault, node.instance_id if node else None, is_node_gone=is_gone and not FAULT.is_terminal(fault.state))
