"""What a job's plan sees and what it may answer. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from models.ids import NodeId, ProcessId
from models.job.elastic import ElasticPolicy
from models.job.states import ALIVE, JobState, ProcessState

Slot = tuple[NodeId, int]
"""A node and a local rank: the place of one process."""


@dataclass(frozen=True)
class Patience:
    """How long a job waits before it concludes something from nothing happening."""

    broken: timedelta = timedelta(seconds=1)
    reform: timedelta = timedelta(seconds=6)
    longest: timedelta = timedelta(seconds=60)
    start: timedelta = timedelta(seconds=60)
    fault: timedelta = timedelta(seconds=1)
    told: timedelta = timedelta(seconds=3)
    halt: timedelta = timedelta(seconds=5)
    leaving: timedelta = timedelta(seconds=10)
    """So long before a node's deadline nothing better is waited for."""
    look: timedelta = timedelta(seconds=5)
    """So often a job that could be larger looks whether it may."""
    stable: timedelta = timedelta(seconds=15)
    """A size lasts at least so long before the job grows; twice as long after each further change."""
    longest_stable: timedelta = timedelta(minutes=30)
    calm: timedelta = timedelta(hours=1)
    """Changes of size that lie so far apart do not count together."""
    repair: timedelta = timedelta(minutes=10)
    """So long a lost node's place is kept for its job, and the job keeps the nodes it still has."""
    straggler: timedelta = timedelta(minutes=10)
    """After a slow rank has been replaced none is for so long: each time costs a change of membership, and what it was good for is to show first."""


@dataclass(frozen=True)
class NodeSeen:
    """``serves``: ready and wanted. ``is_going``: drained, released or gone, so that nothing on it counts any more.

    ``leave_why`` says why what runs there is to leave, None if it need not, and ``leave_by`` when at the latest, where that is known. ``free_since`` is
    since when it has been ready and no process has been on it, as far as anybody asks.
    """

    id: NodeId
    group: str
    age: int
    serves: bool = True
    is_going: bool = False
    is_held: bool = False
    is_spare: bool = False
    """Kept free by its group's spare pool: only what was lost is made up for there."""
    stream_lost_at: datetime | None = None
    went_at: datetime | None = None
    leave_by: datetime | None = None
    leave_why: str | None = None
    free_since: datetime | None = None

    @property
    def must_be_left(self) -> bool:
        """Not merely a recommendation."""
        return self.leave_why is not None and self.leave_by is not None

    @property
    def can_be_told(self) -> bool:
        """A new process is only asked of a node that hears it now."""
        return self.serves and self.stream_lost_at is None


@dataclass(frozen=True)
class RaisedSeen:
    """That user code raised, in these generations, oldest first, while the process lived on; ``words`` is the traceback of the first time."""

    generations: tuple[int, ...]
    at: tuple[datetime, ...]
    words: str


@dataclass(frozen=True)
class HangSeen:
    """That a process made no progress for ``seconds`` at ``step`` of ``generation``; ``how`` is computing, waiting or frozen.

    ``since`` is when it was first told so of this step, ``at`` when last.
    """

    generation: int
    step: int
    how: str
    seconds: float
    limit_s: float
    stack: str = ""
    at: datetime | None = None
    since: datetime | None = None


@dataclass(frozen=True)
class LagSeen:
    """That a process has held the others up, as ``rank`` of ``generation``, and had not caught up when it was told last."""

    generation: int
    rank: int
    own_s: float
    others_s: float


@dataclass(frozen=True)
class ProcessSeen:
    """``failure`` is what user code raised inside the training function; ``last_words`` the end of its log, where it failed elsewhere."""

    id: ProcessId
    node: NodeId
    local_rank: int
    state: ProcessState
    state_since: datetime
    reformed: int = 0
    broken: int = 0
    broken_at: datetime | None = None
    failure: str | None = None
    last_words: str | None = None
    device_fault: str | None = None
    """What its accelerator's driver said of it."""
    hang: HangSeen | None = None
    lag: LagSeen | None = None
    raised: RaisedSeen | None = None
    has_started: bool = False
    """It has had a process id."""
    exit_code: int | None = None
    signal: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    @property
    def slot(self) -> Slot:
        return (self.node, self.local_rank)


@dataclass(frozen=True)
class GenerationSeen:
    """``step`` is the one that it went on with, known when it has formed, and ``reached`` the one after the last it is known to have committed.

    ``has_buddies``: what a rank holds of the state is in one other rank besides, the next one on another node, and nowhere else (FSDP without replicas).
    """

    number: int
    members: tuple[ProcessId, ...]
    decided_at: datetime
    is_formed: bool
    step: int | None = None
    cause: str = ""
    reached: int | None = None
    has_buddies: bool = False

    @property
    def has_stepped(self) -> bool:
        """Whether a step of its own is known to be committed."""
        return self.reached is not None and self.reached > (self.step or 0)


@dataclass(frozen=True)
class CheckpointSeen:
    """The newest complete step of the job's namespace. ``nodes`` hold it in memory; ``durable_at`` is when it was in the object store, if it is."""

    step: int
    nodes: int = 0
    durable_at: datetime | None = None


@dataclass(frozen=True)
class Told:
    """A node that has a current directive for the job, and whether and when it was written to the node's stream."""

    node: NodeId
    is_delivered: bool
    delivered_at: datetime | None = None


@dataclass(frozen=True)
class SizeChange:
    """From one number of nodes to another, at the time when it was decided."""

    at: datetime
    before: int
    after: int


@dataclass(frozen=True)
class Elasticity:
    """``wish`` is the size that is asked for, since ``wished_at`` if by a command, ``ceiling`` the most that others leave the job.

    ``changes`` are those of its size so far, oldest first.
    """

    policy: ElasticPolicy
    wish: int
    wished_at: datetime | None = None
    ceiling: int | None = None
    ceiling_why: str | None = None
    changes: tuple[SizeChange, ...] = ()


@dataclass(frozen=True)
class JobSeen:
    """``generations`` holds the newest ones, oldest first; ``groups`` limits where the job may run, empty for anywhere.

    ``step`` is the one after the last that was committed. ``has_namespace``: the job may have checkpoints, of which ``checkpoint`` is the newest
    complete one. ``awaits`` nodes have been lost and are waited for, ``is_queue_behind`` if another job could use what this one holds meanwhile.
    ``straggler_replaced_at`` is when a slow rank has been replaced last.
    """

    state: JobState
    replicas: int
    is_plain: bool = False
    processes_per_node: int = 1
    spares: int = 0
    max_restarts: int = 3
    restarts: int = 0
    is_stopping: bool = False
    cluster_is_going: bool = False
    halted_at: datetime | None = None
    grace: timedelta = timedelta(seconds=10)
    groups: frozenset[str] = frozenset()
    processes: tuple[ProcessSeen, ...] = ()
    nodes: Mapping[NodeId, NodeSeen] = field(default_factory=dict)
    generations: tuple[GenerationSeen, ...] = ()
    told: tuple[Told, ...] = ()
    has_ever_formed: bool = False
    step: int = 0
    has_namespace: bool = False
    checkpoint: CheckpointSeen | None = None
    why: str | None = None
    elastic: Elasticity | None = None
    awaits: int = 0
    awaits_since: datetime | None = None
    is_queue_behind: bool = False
    replaces_stragglers: bool = False
    straggler_replaced_at: datetime | None = None
    patience: Patience = field(default_factory=Patience)

    @property
    def world_size(self) -> int:
        return self.replicas * self.processes_per_node

    @property
    def generation(self) -> GenerationSeen | None:
        return self.generations[-1] if self.generations else None

    @cached_property
    def by_id(self) -> dict[ProcessId, ProcessSeen]:
        return {process.id: process for process in self.processes}

    @cached_property
    def alive(self) -> tuple[ProcessSeen, ...]:
        return tuple(process for process in self.processes if process.is_alive)


@dataclass(frozen=True)
class Start:
    """New processes, which warm up without a rank."""

    places: tuple[Slot, ...]
    why: str


@dataclass(frozen=True)
class GiveUp:
    """``is_planned``: nothing is lost with it."""

    process: ProcessId
    why: str
    is_planned: bool = False


@dataclass(frozen=True)
class Publish:
    """The next generation; ``members`` are ordered by rank. ``evidence_at`` is when the first sign of its cause was seen."""

    members: tuple[ProcessId, ...]
    why: str
    evidence_at: datetime | None = None


@dataclass(frozen=True)
class Move:
    new: JobState
    why: str


@dataclass(frozen=True)
class Form:
    """The generation has formed: it runs, though nobody says where its state came from."""

    number: int
    why: str


@dataclass(frozen=True)
class CountRestarts:
    restarts: int
    why: str


@dataclass(frozen=True)
class Halt:
    """Every process is told to end."""

    why: str


@dataclass(frozen=True)
class Withdraw:
    """The node has nothing left to do for the job."""

    node: NodeId
    why: str


@dataclass(frozen=True)
class Say:
    """What the job waits for."""

    why: str


@dataclass(frozen=True)
class Resize:
    """So many nodes the first generation is to have."""

    replicas: int
    why: str


@dataclass(frozen=True)
class Await:
    """So many nodes have been lost and are waited for."""

    nodes: int
    why: str


Action = Start | GiveUp | Publish | Form | Move | CountRestarts | Halt | Withdraw | Say | Resize | Await
