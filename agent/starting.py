"""How a process of a job comes to be: forked from a zygote where that is possible, else executed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.protocol import NODE_ID_VARIABLE, PREFETCH_VARIABLE, Assignment, Process

from . import processes, torchrun
from .prefetch import Prefetch
from .processes import Record, Script
from .zygotes import ZygoteFailed, Zygotes

Variables = Callable[[str, str | None], Awaitable[dict[str, str]]]
"""What a process of a job is told of its checkpoints, from the job and the namespace that its assignment names."""


@dataclass(frozen=True)
class Started:
    """``child`` is there if this agent is the parent. ``record.pid`` is 0 if the command could not be started; the log says why."""

    record: Record
    child: subprocess.Popen[bytes] | None = None
    was_never_wanted: bool = False
    """It was let go before it had to be started."""


@dataclass
class Running:
    """A process that this node has or had. ``record`` is None while it is being started."""

    job: str
    record: Record | None = None
    is_ready: bool = False
    is_finished: bool = False
    is_dismissed: bool = False
    ending: asyncio.Task[None] | None = None

    @property
    def has_exited(self) -> bool:
        return self.record is not None and self.record.has_exited


class Starter:
    """``environment`` is the agent's own, ``socket`` where processes find it. One event loop's."""

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        address: str,
        state_dir: Path,
        socket: Path,
        variables: Variables | None,
        zygotes: Zygotes,
        prefetch: Prefetch,
    ) -> None:
        self._prefetch = prefetch
        self._environment = environment
        self._address = address
        self._state_dir = state_dir
        self._socket = socket
        self._variables = variables
        self._zygotes = zygotes
        self.records = state_dir / "processes"

    def record_path(self, process: str) -> Path:
        return self.records / f"{process}.json"

    def log_path(self, job: str, name: str) -> Path:
        folder = self._state_dir / "jobs" / job
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.log"

    def error_path(self, job: str, process: str) -> Path:
        """Where a plain script is to leave what brought it down."""
        return self._state_dir / "jobs" / job / f"{process}.error.json"

    async def warm(self, assignment: Assignment) -> None:
        """Returns when a process of the job can be forked, or when it is clear that it has to be executed."""
        script = processes.as_script(assignment.launch)
        with contextlib.suppress(ZygoteFailed, OSError):
            if script is not None:
                shared, _ = _shared(self._common(assignment))
                log = self.log_path(assignment.job, "zygote")
                zygote = await self._zygotes.get(script.interpreter, shared, log, assignment.job)
                await zygote.ready()

    def never(self, process: Process, assignment: Assignment) -> Started:
        """For one that was held and then let go."""
        log = self.log_path(assignment.job, process.id)
        return Started(Record(assignment.job, process.id, str(log), pid=0, start_time=0), was_never_wanted=True)

    async def start(self, process: Process, assignment: Assignment, *, port: int | None = None) -> Started:
        """With a ``port``, for the ranks of its generation to meet, it is started as torchrun would."""
        job, launch, log = assignment.job, assignment.launch, self.log_path(assignment.job, process.id)
        common = self._common(assignment)
        own = processes.process_environment(process, assignment.generation, launch, job=job, address=self._address)
        own["EVERSTEP_DURABLE_URL"] = processes.durable_url(self._environment)
        own["EVERSTEP_SOCKET"] = str(self._socket)
        if folder := self._prefetch.folder(job):
            own[PREFETCH_VARIABLE] = str(folder)
        if self._variables is not None:
            own |= await self._variables(job, launch.env.get("EVERSTEP_NAMESPACE"))
        rank = assignment.generation.rank_of(process.id) if assignment.generation else None
        if port is not None and assignment.generation is not None and rank is not None:
            error_file = self.error_path(job, process.id)
            own |= torchrun.environment(assignment.generation, rank, launch, port=port, error_file=error_file, own=common)
        script = processes.as_script(launch)
        try:
            forked = await self._fork(script, process, assignment, common, own, log) if script else None
            return forked or self._spawn(process, assignment, {**common, **own}, log)
        except OSError as error:
            with log.open("a") as stream:
                stream.write(f"everstep: cannot start {' '.join(launch.command)}: {error}\n")
            return Started(Record(job, process.id, str(log), pid=0, start_time=0))

    def _common(self, assignment: Assignment) -> dict[str, str]:
        """What all processes of a job on this node see. A zygote is for those that see the same."""
        launch = assignment.launch
        return processes.launch_environment(self._environment, launch, is_alone=launch.is_plain and len(assignment.processes) == 1)

    async def _fork(
        self, script: Script, process: Process, assignment: Assignment, common: dict[str, str], own: dict[str, str], log: Path
    ) -> Started | None:
        """None when there is no zygote to fork from: an interpreter without torch or everstep, say."""
        job = assignment.job
        shared, of_job = _shared(common)
        request: dict[str, Any] = {
            "process": process.id,
            "script": script.path,
            "arguments": list(script.arguments),
            "working_dir": assignment.launch.working_dir,
            "env": of_job | own,
            "log": str(log),
            "record": str(self.record_path(process.id)),
            "record_members": {"job": job, "process": process.id, "log": str(log)},
        }
        try:
            zygote = await self._zygotes.get(script.interpreter, shared, self.log_path(job, "zygote"), job)
            pid = await zygote.fork(request)
        except ZygoteFailed:
            return None
        return Started(Record(job, process.id, str(log), pid, processes.start_time(pid) or 0))

    def _spawn(self, process: Process, assignment: Assignment, environment: dict[str, str], log: Path) -> Started:
        launch = assignment.launch
        child = processes.spawn(processes.resolved(launch), environment, launch.working_dir, log)
        record = Record(assignment.job, process.id, str(log), child.pid, processes.start_time(child.pid) or 0)
        record.write(self.record_path(process.id))
        return Started(record, child)


def _shared(common: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What a zygote sees, and what is of one job alone and of no use to an import: jobs that differ in nothing else share a zygote."""
    of_job = {name: value for name, value in common.items() if name == "WORLD_SIZE" or _is_ours(name)}
    return {name: value for name, value in common.items() if name not in of_job}, of_job


def _is_ours(name: str) -> bool:
    """Not the node's name, by which everything that runs on it is found."""
    return name.startswith("EVERSTEP_") and name != NODE_ID_VARIABLE
