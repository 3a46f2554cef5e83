"""The words that control plane, agent and training process say to each other.

Three conversations use them:
* **agent ↔ control plane**, HTTP under ``/agent/v1``: the agent registers, beats, reports *facts* and is sent *assignments* on a stream.
* **training process ↔ agent**, over a Unix socket: ``everstep.local_protocol``.
* **training process ↔ rendezvous**, a small key-value store which the agent of a generation's first member hosts.

Everything is level-triggered: an assignment is the whole of what a node should run for a job, and a generation is the whole
membership. A message that is lost is repaired by the next one; a message that comes twice changes nothing.
Standard library only: this module travels into users' training environments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_args

from everstep.evidence import AnomalyReport, HungReport, StragglerReport
from everstep.examination import HealthReport
from everstep.hardware import HardwareFault, HardwareReport
from everstep.notices import CutReport, SpotNotice
from everstep.tiers import CopiesReport, DurableReport, SavedReport, TierReport
from everstep.wire import Wire

PROTOCOL_VERSION = 1
VERSION = "0.1.0"
"""Of this Everstep: what agents register with, and the image release that nodes start from unless an operator registers another."""
NODE_ID_VARIABLE = "EVERSTEP_NODE_ID"
PREFETCH_VARIABLE = "EVERSTEP_PREFETCH_DIR"
"""Where a job's processes on a node keep batches that they have prepared; the agent makes the folder, and takes it away with the job."""
FAULTS_VARIABLE = "EVERSTEP_FAULTS"
"""A file of faults to inject (``everstep.testing.faults``): the one variable of ours that a job file may set."""


# ------------------------------------------------------------------ what a node should run


@dataclass(frozen=True)
class Member(Wire):
    """One rank of a generation: which process plays it, on which node, reachable at which address."""

    rank: int
    process: str
    node: str
    address: str
    local_rank: int = 0


@dataclass(frozen=True)
class Generation(Wire):
    """The membership of a job between two changes. ``members[i].rank == i``; the world size is ``len(members)``.

    ``rendezvous`` is ``host:port`` of the first member's agent; ``token`` authorises its use for this job.
    """

    job: str
    number: int
    cause: str
    members: tuple[Member, ...]
    rendezvous: str
    token: str

    @property
    def world_size(self) -> int:
        return len(self.members)

    def rank_of(self, process: str) -> int | None:
        return next((member.rank for member in self.members if member.process == process), None)


@dataclass(frozen=True)
class Launch(Wire):
    """How a job's processes are started. ``command`` is run in ``working_dir`` with ``env`` on top of the agent's own.

    ``is_plain``: each generation is made of new processes, which find their rank in their environment, as torchrun gives it.
    """

    command: tuple[str, ...]
    working_dir: str
    env: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    is_plain: bool = False
    max_restarts: int = 0


@dataclass(frozen=True)
class Process(Wire):
    """A process that should be alive on this node. ``rank`` is None for a warm spare; ids are never used twice."""

    id: str
    rank: int | None = None
    local_rank: int = 0


@dataclass(frozen=True)
class Assignment(Wire):
    """All that a node should run for one job. Processes that are not listed are to end; none listed means: halt."""

    job: str
    launch: Launch
    processes: tuple[Process, ...] = ()
    generation: Generation | None = None
    grace_s: float = 10.0


@dataclass(frozen=True)
class Directive(Wire):
    """One line of the agent's directive stream. A larger ``id`` supersedes a smaller one for the same job.

    A fresh stream first tells everything that the node should run, and then an empty line: a job that was not among it is to end here.
    """

    id: int
    assignment: Assignment


@dataclass(frozen=True)
class Fault(Wire):
    """Something to break on purpose: a line ``{"fault": …}`` of the directive stream, told again until the agent has said what came of it.

    ``kind``: ``kill-rank``, ``hang-rank`` (for ``seconds``, or until it is over), ``kill-node``, ``corrupt-shard`` (a byte of this node's copy),
    ``xid`` (``code`` of the simulated accelerator at the place ``device``), ``spot-notice`` (the host goes in ``seconds``), ``spot-reclaim``,
    ``partition`` and ``slow-node`` (for ``seconds``). ``is_over`` ends it, or takes it back.
    """

    id: str
    kind: str
    process: str | None = None
    seconds: float | None = None
    is_over: bool = False
    namespace: str | None = None
    step: int | None = None
    index: int | None = None
    code: int | None = None
    device: int | None = None


# ------------------------------------------------------------------ agent → control plane


class ProcessStatus(StrEnum):
    STARTED = "started"
    """It exists."""
    READY = "ready"
    """It has built its model, rehearsed a step and waits for a generation."""
    EXITED = "exited"
    """It is gone; ``exit_code`` or ``signal`` says how."""


@dataclass(frozen=True)
class ProcessReport(Wire):
    """What became of a process. ``tail`` holds the last lines of its log when it has exited."""

    job: str
    process: str
    status: ProcessStatus
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    tail: str | None = None
    kind: str = "process"


@dataclass(frozen=True)
class BrokenReport(Wire):
    """A collective of this generation failed in a live process: evidence that a peer is gone, not proof."""

    job: str
    generation: int
    process: str
    message: str
    at: float
    kind: str = "broken"


class Source(StrEnum):
    """Where a process found the state with which it goes on."""

    INITIAL = "initial"
    KEPT = "kept"
    ROLLED_FORWARD = "rolled-forward"
    PEER = "peer"
    MEMORY = "memory"
    STORE = "store"


@dataclass(frozen=True)
class ReformedReport(Wire):
    """A process has joined a generation and holds its state. ``phases`` maps a phase's name to its end, in Unix seconds.

    ``copies`` of each part of the state live in the ranks, so that the loss of one process costs ``worst_loss`` committed steps at most; it means nothing
    for a single copy. None: an older runtime, which does not tell.
    """

    job: str
    generation: int
    process: str
    rank: int
    step: int
    source: Source
    bytes_moved: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    copies: int | None = None
    worst_loss: int | None = None
    kind: str = "reformed"


@dataclass(frozen=True)
class StepReport(Wire):
    """One committed optimizer step, told by rank 0. ``loss`` is None when the script does not report one.

    ``stall_s`` of its ``seconds`` were spent waiting for a save to have read the state.
    """

    step: int
    seconds: float
    at: float
    loss: float | None = None
    stall_s: float = 0.0


@dataclass(frozen=True)
class ProgressReport(Wire):
    """Steps committed since the last report, oldest first. May be told twice; the step number is the key."""

    job: str
    generation: int
    steps: tuple[StepReport, ...]
    kind: str = "progress"


@dataclass(frozen=True)
class FinishedReport(Wire):
    """A process has done all its steps and waits to be dismissed. ``digest`` is that of its final state (SHA-256, hex)."""

    job: str
    process: str
    generation: int
    step: int
    digest: str | None = None
    kind: str = "finished"


@dataclass(frozen=True)
class FailedReport(Wire):
    """User code raised; ``traceback`` is what the user needs to see. The process exits after this, unless it ``stays`` to try again."""

    job: str
    process: str
    generation: int
    traceback: str
    stays: bool = False
    kind: str = "failed"


@dataclass(frozen=True)
class LifecycleStarted(Wire):
    """A lifecycle script was fetched and begins; ``attempt`` counts its tries from 1. An agent that comes back begins the same try again."""

    script: str
    attempt: int = 1
    kind: str = "lifecycle-started"


@dataclass(frozen=True)
class LifecycleReport(Wire):
    """A lifecycle script has ended (or there was none, ``exit_code`` 0). ``tail`` holds the end of its output.

    Unless ``is_final``, this was one try, from 1, of several. ``script`` is the one that ended last, None if there was none to run.
    """

    exit_code: int
    seconds: float
    tail: str = ""
    script: str | None = None
    attempt: int = 1
    is_final: bool = True
    kind: str = "lifecycle"


class FaultOutcome(StrEnum):
    STRUCK = "struck"
    """Done, and over."""
    HOLDING = "holding"
    """Done, and it lasts."""
    ENDED = "ended"
    """It lasts no longer, or was taken back before it struck."""
    MISSED = "missed"
    """There was nothing left to strike, or the agent does not know this kind."""


@dataclass(frozen=True)
class FaultReport(Wire):
    """What came of a fault; ``note`` says how, in words."""

    fault: str
    outcome: FaultOutcome
    note: str | None = None
    kind: str = "fault"


@dataclass(frozen=True)
class LogReport(Wire):
    """What a process has written since the last such report: whole lines. ``skipped`` bytes before them were too many to tell."""

    job: str
    process: str
    text: str
    skipped: int = 0
    kind: str = "log"


Report = (
    ProcessReport
    | BrokenReport
    | ReformedReport
    | ProgressReport
    | FinishedReport
    | FailedReport
    | LifecycleStarted
    | LifecycleReport
    | LogReport
    | FaultReport
    | HealthReport
    | CopiesReport
    | DurableReport
    | TierReport
    | SavedReport
    | HardwareReport
    | HardwareFault
    | SpotNotice
    | CutReport
    | HungReport
    | StragglerReport
    | AnomalyReport
)
REPORTS: dict[str, type[Report]] = {cls.kind: cls for cls in get_args(Report)}


def report_from_wire(wire: dict[str, Any]) -> Report:
    """Raises ValueError for a kind that this version does not know."""
    kind = wire.get("kind", "")
    if kind not in REPORTS:
        message = f"report of unknown kind {kind!r}; known: {', '.join(sorted(REPORTS))}"
        raise ValueError(message)
    return REPORTS[kind].from_wire(wire)


@dataclass(frozen=True)
class Registration(Wire):
    """``POST /agent/v1/register``. ``token`` is the one-time boot token, or on a restart the node token it was changed for.

    ``processes`` is the inventory: what already runs here. ``boot`` names this start of the agent: (boot, sequence) is one report for ever.
    """

    instance_id: str
    token: str
    address: str
    rendezvous_port: int
    boot: str
    version: str
    vcpus: int
    memory_mib: int
    processes: tuple[ProcessReport, ...] = ()
    health_port: int | None = None
    """Where the agent listens to peers that measure the way to it."""
    start: int = 0
    """Which start of the host this is: its provider numbers them, from 0 for the launch."""


@dataclass(frozen=True)
class Welcome(Wire):
    """The answer to a registration. The node token replaces the boot token, which is used up from now on."""

    node_token: str
    beat_interval_s: float
    lifecycle_uri: str | None = None
    lifecycle_script: str | None = None
    """Run first. None: there is none, or everything has run already on this start from this image."""
    lifecycle_after: str | None = None
    """Run when that has succeeded."""
    lifecycle_tries: int = 1
    """How often each script is tried until it succeeds."""
    lifecycle_pause_s: float = 5.0
    """Between the first and the second try; doubled with each further one."""
    lifecycle_limit_s: float | None = None
    """How long all of it may take, tries and pauses together; None leaves it to the agent."""


@dataclass(frozen=True)
class Beat(Wire):
    """``POST /agent/v1/beat``: alive, nothing more."""

    boot: str
    sequence: int
