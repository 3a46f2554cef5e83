"""What the control plane says of a node's memory tier, and what the tier tells of itself: part of ``everstep.protocol``.

A plan is whole and level-triggered: the newest one replaces the one before, on the directive stream (a line ``{"memory_tier": …}``), at the agent,
and in the tier's process. The plan deletes nothing by leaving it out: what is to go is named in ``ended`` and ``dropped``.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.wire import Wire


@dataclass(frozen=True)
class TierPeer(Wire):
    """Another node of the cluster whose tier is on, by its instance id, which is what its tier calls itself. ``zone`` is where it stands, if known."""

    node: str
    address: str
    zone: str | None = None


@dataclass(frozen=True)
class Retention(Wire):
    """What is kept of a namespace in the object store; members at None do not limit. The newest complete step and pinned ones always stay.

    A step stays if it is among the ``last`` newest or a multiple of ``every``, unless it is older than ``max_age_s``; then the oldest go until all
    take no more than ``max_bytes``.
    """

    last: int | None = None
    every: int | None = None
    max_age_s: float | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class NamespacePlan(Wire):
    """A job's checkpoints. ``token`` opens its namespace, for its processes only.

    ``memory_every`` and ``durable_every`` are steps, as the job file says; None leaves them to the script, and then to the automatic choice from
    ``mtbf_s``, the mean time between faults that the control plane has observed for a job of this size. ``keep_in_memory`` counts steps.
    ``replicas`` counts all copies of a shard in memory, the first one included. ``drain`` are steps to be made durable whatever their seals say
    (pinned, or to be exported); ``dropped`` are steps that no tier is to keep.
    """

    name: str
    job: str
    token: str
    replicas: int = 2
    memory_every: int | None = None
    durable_every: int | None = None
    keep_in_memory: int = 3
    retention: Retention = Retention()
    mtbf_s: float | None = None
    pinned: tuple[int, ...] = ()
    drain: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class TierPlan(Wire):
    """All of one node's memory tier. ``allocation_percent`` is of the node's memory; None: no tier here, and what one held is given back.

    ``peers`` are the other nodes of the cluster, ``secret`` is what they show each other. ``namespaces`` are those of live jobs which have a process
    here or whose shards this node holds; ``ended`` are namespaces whose jobs have ended: their memory is given back once nothing is left to drain.
    ``number`` is the same for the same plan, and another for another; no order follows from it. ``is_store_out`` is an injected outage of the
    object store: every call to it fails.
    """

    number: int
    allocation_percent: int | None = None
    zone: str | None = None
    secret: str = ""
    peers: tuple[TierPeer, ...] = ()
    namespaces: tuple[NamespacePlan, ...] = ()
    ended: tuple[str, ...] = ()
    is_store_out: bool = False


# ------------------------------------------------------------------ the tier → its agent → the control plane


class CopyStatus(StrEnum):
    SEALED = "sealed"
    """It can be had from this node."""
    DROPPED = "dropped"
    """This node has given it up, by retention or because it was told to."""
    CORRUPT = "corrupt"
    """Its bytes did not match its digest; it has been given up."""


@dataclass(frozen=True)
class CopyTold(Wire):
    index: int
    status: CopyStatus
    nbytes: int = 0
    digest: str = ""


@dataclass(frozen=True)
class CopiesReport(Wire):
    """What has become of this node's copies of the shards of one step. ``world_size`` is known to who holds the metadata shard.

    ``written_at`` is the ``Seal.written_at`` of the youngest of them: of two saves of one step the younger counts, in whichever order they are told.
    ``at`` is when this was told, also when an inventory is told again (Unix seconds): of two words on one copy the later one counts.
    """

    namespace: str
    step: int
    copies: tuple[CopyTold, ...]
    save: str = ""
    world_size: int | None = None
    at: float = 0.0
    written_at: float = 0.0
    kind: str = "copies"


@dataclass(frozen=True)
class DurableReport(Wire):
    """A step has been committed to the object store by this node, all its shards first; ``at`` is when.

    ``is_withdrawn``: its manifest has been put aside since, because training went back before it.
    """

    namespace: str
    step: int
    world_size: int
    nbytes: int
    at: float
    save: str = ""
    is_withdrawn: bool = False
    kind: str = "durable"


@dataclass(frozen=True)
class TierReport(Wire):
    """How a node's tier is: told when it changes in kind, and now and then.

    ``allocated_bytes`` is the budget, 0 when off; ``used_bytes`` what shards and segments in reserve take of it. ``backlog_bytes`` wait to be drained,
    the oldest since ``waiting_since`` (Unix seconds). ``outage`` are words on why the object store cannot be reached, None when it can.
    ``refusals`` counts saves for which there was no room. ``note`` is what an operator should know: what was evicted and why.
    """

    plan: int
    allocated_bytes: int
    used_bytes: int
    backlog_bytes: int = 0
    waiting_since: float | None = None
    outage: str | None = None
    refusals: int = 0
    note: str | None = None
    at: float = 0.0
    kind: str = "tier"


@dataclass(frozen=True)
class SavedReport(Wire):
    """What a save has cost, told by rank 0: ``stall_s`` kept training waiting, ``seconds`` went by until the shard was sealed.

    ``why`` explains the interval in force, with its inputs, when it has changed since the last such report.
    """

    job: str
    step: int
    stall_s: float
    seconds: float
    nbytes: int
    memory_every: int | None = None
    durable_every: int | None = None
    why: str | None = None
    kind: str = "saved"
