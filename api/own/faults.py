"""Operations of faults: breaking things on purpose."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from api.operations import faults
from api.operations.faults import FaultView, Injection
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, ClientToken, NextToken, Wire, word
from models.errors import Forbidden, NotFound
from models.fault.states import FaultState
from models.paging import Cut

Id = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class FaultWanted(Asked):
    """``target`` is ``JOB_ID/RANK`` for faults of ranks, an instance id for those of nodes.

    It is ``JOB_ID/STEP/SHARD`` for the copy of a shard in a node's memory, and ``object-store`` for its outage; ``partition`` takes either of the
    first two. ``seconds``: how long one lasts that does; of a ``spot-notice`` until its deadline. ``code`` (74) and ``device`` (0) are of an
    ``xid``: the number, and the accelerator's place on its host.
    """

    kind: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    target: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    seconds: Annotated[float, Field(ge=0.001, le=86_400)] | None = None
    code: Annotated[int, Field(ge=1, le=9_999)] | None = None
    device: Annotated[int, Field(ge=0, le=1_023)] | None = None
    client_token: ClientToken = None


class FaultsWanted(Asked):
    """Of one job; only those that have neither struck nor ended if ``live``."""

    job_id: Id | None = None
    live: bool = False
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class OneFault(Asked):
    fault_id: Id


class FaultShape(Wire):
    """``status`` is one of Wanted, Holding, Ending (on their way), Struck, Missed (there was nothing left to strike) and Ended."""

    fault_id: str
    kind: str
    target: str
    status: str
    instance_id: str | None
    job_id: str | None
    seconds: float | None
    code: int | None
    device: int | None
    note: str | None
    requested_by: str
    created_at: datetime
    struck_at: datetime | None
    ended_at: datetime | None


class FaultList(Wire):
    faults: tuple[FaultShape, ...]
    next_token: str | None


def inject(work: Work, asked: FaultWanted) -> FaultShape:
    """Break something on purpose: kill-rank and hang-rank strike a rank of a job, kill-node a whole node with its agent.

    corrupt-shard changes a byte of one node's copy of a checkpoint's shard in memory; bucket-outage makes every call to the object store fail.
    xid writes a driver's line into the kernel log of simulated accelerators; spot-notice tells that the host will be taken, spot-reclaim takes it;
    partition cuts the node's agent off from the control plane; slow-node gives what trains on the node half of its time.
    """
    return _shape(faults.inject(work, Injection(asked.kind, asked.target, asked.seconds, asked.code, asked.device)))


def listing(work: Work, asked: FaultsWanted) -> FaultList:
    """Faults that were asked for, newest first, and what came of them."""
    cut = Cut(limit=asked.max_results, is_descending=True, cursor=asked.next_token)
    found = faults.listed(work, cut, job_id=asked.job_id, live_only=asked.live)
    return FaultList(faults=tuple(_shape(view) for view in found.rows), next_token=found.cursor)


def clear(work: Work, asked: OneFault) -> FaultShape:
    """End a fault that lasts, or take back one that has not struck. What has struck stays so."""
    return _shape(faults.clear(work, asked.fault_id))


def _shape(view: FaultView) -> FaultShape:
    """What went with its node will not strike any more, or does not hold any more."""
    fault = view.fault
    state = fault.state
    if view.is_node_gone:
        state = FaultState.ENDED if state is FaultState.HOLDING else FaultState.MISSED
    return FaultShape(
        fault_id=fault.id,
        kind=fault.kind,
        target=fault.target,
        status=word(state),
        instance_id=view.instance_id,
        job_id=fault.job_id,
        seconds=fault.seconds,
        code=fault.code,
        device=fault.device,
        note=fault.note,
        requested_by=fault.requested_by,
        created_at=fault.created_at,
        struck_at=fault.struck_at,
        ended_at=fault.ended_at,
    )


FAULTS: OwnTable = (
    Own(
        "InjectFault",
        "POST",
        "/v1/faults",
        FaultWanted,
        FaultShape,
        inject,
        status=201,
        errors=(NotFound, Forbidden),
        remembers=True,
    ),
    Own("ListFaults", "GET", "/v1/faults", FaultsWanted, FaultList, listing, page_of="faults", errors=(NotFound,)),
    Own("ClearFault", "DELETE", "/v1/faults/{fault_id}", OneFault, FaultShape, clear, errors=(NotFound,)),
)
