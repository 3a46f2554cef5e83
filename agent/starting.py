"""How a process of a job comes to be: forked from a zygote where that is possible, else executed."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.protocol import Assignment, Process

from . import processes
from .processes import Record, Script
from .zygotes import ZygoteFailed, Zygotes

Variables = Callable[[str, str | None], Awaitable[dict[str, str]]]
"""What a process of a job is told of its checkpoints, from the job and the namespace that its assignment names."""


@dataclass(frozen=True)
class Started:
    """``child`` is there if this agent is the parent. ``record.pid`` is 0 if the command could not be started; the log says why."""

    record: Record
    child: subprocess.Popen[bytes] | None = None


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
    ) -> None:
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

    async def start(self, process: Process, assignment: Assignment) -> Started:
        job, launch, log = assignment.job, assignment.launch, self.log_path(assignment.job, process.id)
        common = processes.launch_environment(self._environment, launch)
        own = processes.process_environment(process, assignment.generation, launch, job=job, address=self._address)
        own["EVERSTEP_DURABLE_URL"] = processes.durable_url(self._environment)
        own["EVERSTEP_SOCKET"] = str(self._socket)
        if self._variables is not None:
            own |= await self._variables(job, launch.env.get("EVERSTEP_NAMESPACE"))
        script = processes.as_script(launch)
        try:
            forked = await self._fork(script, process, assignment, common, own, log) if script else None
            return forked or self._spawn(process, assignment, {**common, **own}, log)
        except OSError as error:
            with log.open("a") as stream:
                stream.write(f"everstep: cannot start {' '.join(launch.command)}: {error}\n")
            return Started(Record(job, process.id, str(log), pid=0, start_time=0))

    async def _fork(
        self, script: Script, process: Process, assignment: Assignment, common: dict[str, str], own: dict[str, str], log: Path
    ) -> Started | None:
        """None when there is no zygote to fork from: an interpreter without torch or everstep, say."""
        job = assignment.job
        request: dict[str, Any] = {
            "process": process.id,
            "script": script.path,
            "arguments": list(script.arguments),
            "working_dir": assignment.launch.working_dir,
            "env": own,
            "log": str(log),
            "record": str(self.record_path(process.id)),
            "record_members": {"job": job, "process": process.id, "log": str(log)},
        }
        try:
            zygote = await self._zygotes.get(script.interpreter, common, self.log_path(job, "zygote"), job)
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
