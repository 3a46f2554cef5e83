"""Which processes of a job no longer count, and on whose word. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from models.ids import NodeId, ProcessId
from models.job.states import ON_PEERS_WORD, ProcessState
from workers.plans import slow
from workers.plans.decision import soonest
from workers.plans.hangs import hanging
from workers.plans.job_seen import GenerationSeen, JobSeen, NodeSeen, ProcessSeen

_CRASHES = frozenset({4, 6, 7, 8, 11})
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: the process's own doing. SIGKILL and SIGTERM are somebody else's."""


@dataclass(frozen=True)
class Casualties:
    """``alive`` are those that still count. ``doomed`` are said to be alive and yet given up, each with the reason.

    ``released`` are not needed any more where they are: their nodes are to be left, or they held the others up when they last had a rank.
    """

    alive: tuple[ProcessSeen, ...]
    doomed: dict[ProcessId, str] = field(default_factory=dict)
    released: dict[ProcessId, str] = field(default_factory=dict)
    again_in: timedelta | None = None

    def why(self, process: ProcessSeen) -> str:
        if process.id in self.doomed:
            return self.doomed[process.id]
        if process.state is ProcessState.LOST:
            return process.failure or "given up"
        if process.signal is not None:
            return f"killed by signal {process.signal}"
        return f"exited with code {process.exit_code}"


def casualties(seen: JobSeen, now: datetime) -> Casualties:
    """Looks at every live process's node, and at what its peers say."""
    lost_nodes = _lost_nodes(seen)
    hung = hanging(seen).doomed
    laggards = {process.id for process, _ in slow.laggards(seen)}
    doomed: dict[ProcessId, str] = {}
    released: dict[ProcessId, str] = {}
    again: timedelta | None = None
    for process in seen.alive:
        node = seen.nodes.get(process.node)
        if node is None or node.is_going:
            doomed[process.id] = "its node is lost or leaves"
        elif node.id in lost_nodes:
            doomed[process.id] = ON_PEERS_WORD
        elif process.id in hung:
            doomed[process.id] = hung[process.id]
        elif node.must_be_left and _is_dispensable(seen, process):
            released[process.id] = f"its node is to be left: {node.leave_why}"
        elif process.id in laggards and _is_dispensable(seen, process):
            released[process.id] = "it held the others up when it last had a rank"
        elif process.state is ProcessState.WANTED and node.can_be_told:
            rest = process.state_since + seen.patience.start - now
            if rest <= timedelta(0):
                doomed[process.id] = "its agent did not start it"
            else:
                again = soonest(again, rest)
    gone = doomed | released
    return Casualties(tuple(process for process in seen.alive if process.id not in gone), doomed, released, again)


def faults(seen: JobSeen) -> list[ProcessSeen]:
    """Processes that user code has brought down, oldest first."""
    raised = [process for process in seen.processes if process.state is ProcessState.EXITED and is_fault(process)]
    return sorted(raised, key=lambda process: (process.state_since, process.id))


def told_fault(process: ProcessSeen) -> str:
    """What the user needs to see of it. What an accelerator's driver said of the process comes first: it names the rank and the device."""
    told = _told_end(process)
    return f"{process.device_fault}\n{told}" if process.device_fault else told


def _told_end(process: ProcessSeen) -> str:
    if process.failure:
        return process.failure
    how = (
        f"A process was killed by signal {process.signal}" if process.signal else f"A process exited with code {process.exit_code}"
    )
    return f"{how}. The end of its log:\n{process.last_words}" if process.last_words else f"{how}, without a word in its log."


def evidence_at(seen: JobSeen, generation: GenerationSeen, dead: list[ProcessSeen]) -> datetime | None:
    """When the first sign of these deaths was seen, by anybody."""
    signs = [process.state_since for process in dead if not process.is_alive]
    signs += [process.broken_at for process in seen.processes if process.broken >= generation.number and process.broken_at]
    signs += [
        process.hang.at for process in dead if process.hang and process.hang.at and process.hang.generation == generation.number
    ]
    for process in dead:
        node = seen.nodes.get(process.node)
        if node is not None:
            signs += [at for at in (node.stream_lost_at, node.went_at if node.is_going else None) if at is not None]
    return min(signs, default=None)


def _lost_nodes(seen: JobSeen) -> frozenset[NodeId]:
    """Nodes whose stream is closed while a peer elsewhere has lost its collective, unless that has another explanation.

    A closed stream alone may be an agent that restarts; a broken collective alone may be another rank's exit.
    """
    generation = seen.generation
    if generation is None:
        return frozenset()
    members = [seen.by_id[process] for process in generation.members]
    if any(not process.is_alive or _is_going(seen, process) for process in members):
        return frozenset()
    complaining = {process.node for process in members if process.broken >= generation.number}
    silent = {process.node for process in members if _node(seen, process).stream_lost_at is not None}
    return frozenset(node for node in silent if complaining - {node})


def _is_dispensable(seen: JobSeen, process: ProcessSeen) -> bool:
    """No rank is its, and nobody may still need its state: that of a rank handed over is kept until those who took over hold it.

    Before the first generation one that has started may be a script that knows nothing of us, at work: it has until the deadline.
    """
    generation = seen.generation
    if generation is None:
        return process.state is not ProcessState.STARTED
    return process.id not in generation.members and (generation.is_formed or not process.reformed)


def _is_going(seen: JobSeen, process: ProcessSeen) -> bool:
    return process.node not in seen.nodes or seen.nodes[process.node].is_going


def _node(seen: JobSeen, process: ProcessSeen) -> NodeSeen:
    return seen.nodes[process.node]


def is_fault(process: ProcessSeen) -> bool:
    """Raised, left with an exit code of its own, or crashed. A kill from outside is nobody's fault."""
    return process.failure is not None or process.exit_code not in (None, 0) or process.signal in _CRASHES
