"""Use-cases of faults: things are broken on purpose, by the agents of real nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.operations.work import Work
from models.checkpoint import queries as checkpoints
from models.checkpoint.states import CopyState
from models.cluster import queries as clusters
from models.errors import Forbidden, Invalid, NotFound
from models.fault import changes, queries
from models.fault.changes import FaultWish
from models.fault.states import FAULT, FaultKind
from models.fault.table import Fault
from models.job import queries as jobs
from models.node import queries as nodes
from models.node.states import NodeState
from models.node.table import Node
from models.paging import Cut, Page
from models.session import team_of

LASTING: Final = frozenset(
    {FaultKind.HANG_RANK, FaultKind.BUCKET_OUTAGE, FaultKind.SPOT_NOTICE, FaultKind.PARTITION, FaultKind.SLOW_NODE}
)
SECONDS: Final = {FaultKind.SPOT_NOTICE: 120.0, FaultKind.PARTITION: 60.0, FaultKind.SLOW_NODE: 60.0}
"""How long those last that must end by themselves, unless the caller says: nobody can reach a node that is cut off to clear it."""
LONGEST_S: Final = 3600.0
"""Of those that must end by themselves."""
XID: Final = 74
STORE: Final = "object-store"
"""The one target of an outage: there is one object store."""


_COPY: Final = re.compile(r"(?P<job>[^/]+)/(?P<step>[0-9]{1,18})/(?P<shard>[0-9]{1,9})")


@dataclass(frozen=True)
class Injection:
    kind: str
    target: str
    seconds: float | None
    code: int | None = None
    device: int | None = None


@dataclass(frozen=True)
class FaultView:
    """``is_node_gone``: what was to be struck went with its node."""

    fault: Fault
    instance_id: str | None
    is_node_gone: bool


def inject(work: Work, asked: Injection) -> FaultView:
    """Asks the node's agent to strike.

    Raises:
        Invalid: an unknown kind, a target of the wrong form, or one that there is nothing to strike at.
        NotFound: no such job or instance.
        Forbidden: a node of a cluster that the caller may not change, or the object store, which is everybody's.
    """
    try:
        kind = FaultKind(asked.kind)
    except ValueError as error:
        raise Invalid(message=f"Kind: there is no fault '{asked.kind}'; there are {', '.join(FaultKind)}.") from error
    _check_members(kind, asked)
    if kind is FaultKind.BUCKET_OUTAGE:
        return FaultView(_outage(work, asked), None, is_node_gone=False)
    wish = _wish(work, kind, asked)
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


def _check_members(kind: FaultKind, asked: Injection) -> None:
    if asked.seconds is not None and kind not in LASTING:
        raise Invalid(message=f"Seconds: {kind} strikes once and does not last; leave it out.")
    if kind in SECONDS and asked.seconds is not None and asked.seconds > LONGEST_S:
        raise Invalid(message=f"Seconds: {kind} lasts {LONGEST_S:.0f} seconds at the most, not {asked.seconds:g}.")
    if kind is not FaultKind.XID and (asked.code is not None or asked.device is not None):
        member = "Code" if asked.code is not None else "Device"
        raise Invalid(message=f"{member}: {kind} is no fault of an accelerator; leave it out.")


def _wish(work: Work, kind: FaultKind, asked: Injection) -> FaultWish:
    match kind:
        case FaultKind.KILL_NODE | FaultKind.SPOT_RECLAIM:
            return _node(work, kind, asked)
        case FaultKind.SPOT_NOTICE | FaultKind.SLOW_NODE:
            return replace(_node(work, kind, asked), seconds=asked.seconds or SECONDS[kind])
        case FaultKind.PARTITION:
            return _partition(work, kind, asked)
        case FaultKind.XID:
            code = XID if asked.code is None else asked.code
            return replace(_node(work, kind, asked), code=code, device=asked.device or 0)
        case FaultKind.CORRUPT_SHARD:
            return _copy(work, asked)
        case _:
            return _rank(work, kind, asked)


def _partition(work: Work, kind: FaultKind, asked: Injection) -> FaultWish:
    """Of the node, or of the one on which a rank of a job runs."""
    node, job_id = asked, None
    if "/" in asked.target:
        struck = _rank(work, kind, asked)
        node, job_id = replace(asked, target=str(struck.instance_id)), struck.job_id
    wish = _node(work, kind, node)
    return replace(wish, target=asked.target, job_id=job_id, seconds=asked.seconds or SECONDS[kind])


def _outage(work: Work, asked: Injection) -> Fault:
    if asked.target != STORE:
        raise Invalid(message=f"Target: bucket-outage takes '{STORE}', not '{asked.target}': there is one object store.")
    if team_of(work.session) is not None:
        raise Forbidden(message="The object store is everybody's: a caller of a team must not break it.")
    if queries.is_store_out(work.session):
        raise Invalid(message="Kind: the object store is out already; clear that fault first.")
    return changes.request_outage(work.session, target=asked.target, seconds=asked.seconds, by=work.caller.name, now=work.now)


def _copy(work: Work, asked: Injection) -> FaultWish:
    """The first node, by its id, that holds the shard in memory: whichever it is, its copy must not be believed."""
    named = _COPY.fullmatch(asked.target)
    if named is None:
        raise Invalid(message=f"Target: corrupt-shard takes JOB_ID/STEP/SHARD, not '{asked.target}'.")
    job, step, shard = jobs.get(work.session, named["job"]), int(named["step"]), int(named["shard"])
    namespace = checkpoints.of_job(work.session, job.id)
    saved = checkpoints.find(work.session, namespace.name, step) if namespace else None
    if namespace is None or saved is None:
        raise Invalid(message=f"Target: {job.id} has no checkpoint of step {step}.")
    held = [copy for copy in checkpoints.copies(work.session, saved.id, saved.save) if copy.state is CopyState.SEALED]
    node_id = next((copy.node_id for copy in held if copy.index == shard), None)
    if node_id is None:
        there = ", ".join(str(index) for index in sorted({copy.index for copy in held})) or "none"
        raise Invalid(message=f"Target: no node holds shard {shard} of step {step} in memory; the shards that are held: {there}.")
    node = nodes.get(work.session, node_id)
    return FaultWish(
        kind=FaultKind.CORRUPT_SHARD,
        target=asked.target,
        cluster_id=job.cluster_id,
        node_id=node.id,
        instance_id=node.instance_id,
        group_name=node.group_name,
        job_id=job.id,
        namespace=namespace.name,
        step=step,
        shard=shard,
    )


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


def _node(work: Work, kind: FaultKind, asked: Injection) -> FaultWish:
    """A node is everybody's who may use its cluster: who breaks one must be allowed to change that."""
    node = nodes.by_instance(work.session, asked.target)
    if node.state in (NodeState.REQUESTED, NodeState.GONE):
        raise NotFound(kind="Instance", name=asked.target)
    clusters.find(work.session, clusters.get(work.session, node.cluster_id).name, lock=True)
    return FaultWish(
        kind=kind,
        target=asked.target,
        cluster_id=node.cluster_id,
        node_id=node.id,
        instance_id=node.instance_id,
        group_name=node.group_name,
    )


def _views(session: Session, faults: tuple[Fault, ...]) -> list[FaultView]:
    wanted = {fault.node_id for fault in faults if fault.node_id is not None}
    known = {node.id: node for node in session.scalars(select(Node).where(Node.id.in_(wanted)))}
    return [_view(fault, known.get(fault.node_id) if fault.node_id else None) for fault in faults]


def _view(fault: Fault, node: Node | None) -> FaultView:
    """A node that the caller does not see any more is another team's now: of its instance nothing is told. An outage is no node's."""
    if fault.node_id is None:
        return FaultView(fault, None, is_node_gone=False)
    is_gone = node is None or node.state is NodeState.GONE
    return FaultView(fault, node.instance_id if node else None, is_node_gone=is_gone and not FAULT.is_terminal(fault.state))
