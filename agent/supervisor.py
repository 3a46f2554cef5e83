"""Makes what runs on this node match what the control plane has assigned, and tells what became of it.

Level-triggered: an assignment is the whole of a job on this node. A process that is listed and unknown is started, once; one that is not
listed is ended; a process that has ended is never started again, its id is never used twice. The supervisor may be killed at any moment:
processes live on, and the next one adopts them from their records.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.local_protocol import ToAgent
from everstep.notices import Evacuation
from everstep.protocol import (
    Assignment,
    FailedReport,
    Generation,
    Process,
    ProcessReport,
    ProcessStatus,
    Report,
    StepReport,
)
from everstep.standby import Standby as Order
from everstep.tiers import DurableReport

from . import processes, torchrun
from .bell import Bell
from .evacuation import Evacuations, Resident
from .hangs import HUNG_GRACE_S, Hangs
from .prefetch import Prefetch
from .processes import Exit, Exits, Record
from .progress import Progress
from .ranks import Door, rank_report
from .rendezvous import Rendezvous
from .standby import Standby
from .starting import Running, Started, Starter, Variables
from .zygotes import Zygotes

_CANNOT_START = 127
"""As shells say."""


class Supervisor:
    """One per node. All methods are called from one event loop; ``report`` is called from it too and must not block."""

    def __init__(
        self,
        *,
        node_id: str,
        address: str,
        state_dir: Path,
        report: Callable[[Report], None],
        environment: Mapping[str, str],
        variables: Variables | None = None,
        prefetch_dir: Path | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._report = report
        self._door = Door(state_dir, self)
        self._rendezvous = Rendezvous(address)
        self._exits = Exits(state_dir / "exits.jsonl")
        self._processes: dict[str, Running] = {}
        self._assignments: dict[str, Assignment] = {}
        self._zygotes = Zygotes(self._exits.learn)
        self._prefetch = Prefetch(prefetch_dir)
        self._starter = Starter(
            environment={**environment, "EVERSTEP_NODE_ID": node_id},
            address=address,
            state_dir=state_dir,
            socket=self._door.path,
            variables=variables,
            zygotes=self._zygotes,
            prefetch=self._prefetch,
        )
        self._progress = Progress(report)
        self._evacuations = Evacuations(self._residents, report)
        self._hangs = Hangs(report, self.record)
        self._ports = torchrun.MasterPorts(state_dir / "jobs")
        self._bell = Bell()
        self._tasks: set[asyncio.Task[None]] = set()
        self._standby = Standby(self._zygotes, self._starter.warm, self._run, is_wanted=self._is_wanted, is_idle=self._is_idle)

    # ------------------------------------------------------------ what the agent calls

    async def start(self) -> int:
        """Opens the socket and the rendezvous, adopts what still runs, and returns the rendezvous port."""
        self._starter.records.mkdir(parents=True, exist_ok=True)
        for record in processes.read_records(self._starter.records):
            self._adopt(record)
        self._prefetch.sweep({running.job for running in self._processes.values()})
        await self._door.start()
        kept = self._state_dir / "rendezvous.port"
        port = await self._rendezvous.start(int(kept.read_text()) if kept.exists() else 0)
        kept.write_text(str(port))
        self._run(self._progress.run())
        self._run(self._hangs.run())
        return port

    def inventory(self) -> tuple[ProcessReport, ...]:
        """Everything that is known of the node's processes, ended ones included until their job no longer lists them."""
        return tuple(self._process_report(name) for name, running in self._processes.items() if running.record is not None)

    def record(self, process: str) -> Record | None:
        """What is known of a process of this node; None for one that is not here, or is only being started."""
        running = self._processes.get(process)
        return running.record if running else None

    async def apply(self, assignment: Assignment) -> None:
        """Starts what is missing, hands the generation on, ends what is not listed. Returns before any of it is done."""
        before = self._assignments.get(assignment.job)
        if before is not None and _is_older(assignment.generation, before.generation):
            assignment = replace(assignment, generation=before.generation)
        self._assignments[assignment.job] = assignment
        if assignment.generation is not None:
            self._hand_on(assignment, assignment.generation)
        listed = {process.id for process in assignment.processes}
        for process in assignment.processes:
            if process.id not in self._processes:
                self._processes[process.id] = Running(assignment.job)
                self._run(self._launch(process, assignment))
        for name, running in list(self._processes.items()):
            if running.job == assignment.job and name not in listed:
                self._let_go(name, running, assignment.grace_s)
        if not listed:
            self._forget_job(assignment.job)
        self._bell.ring()

    def evacuate(self, told: Evacuation) -> None:
        """Every process of the node is told, also those that connect later, until it is over; what is left at the deadline is ended."""
        self._evacuations.hear(told)
        for process in self._processes:
            self._door.tell_notice(process, told)

    def stand_by(self, told: Order) -> None:
        """While nothing runs here, whatever the processes that are expected would import is held in memory."""
        self._standby.hear(told)

    async def stop(self, grace_s: float) -> None:
        """Ends everything on the node: asks, then, after ``grace_s``, kills."""
        for name, running in list(self._processes.items()):
            self._let_go(name, running, grace_s)
        await asyncio.gather(*(running.ending for running in self._processes.values() if running.ending), return_exceptions=True)
        await self.detach()
        self._prefetch.end()

    async def detach(self) -> None:
        """Lets go of everything without ending it, as a crash would: processes stay for the next supervisor."""
        await self._evacuations.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._exits.stop()
        await self._door.stop()
        await self._rendezvous.stop()
        await self._zygotes.stop()
        self._ports.stop()
        self._progress.tell()

    def _residents(self) -> list[Resident]:
        found = []
        for name, running in self._processes.items():
            if running.record is not None and not running.has_exited:
                assignment = self._assignments.get(running.job)
                grace_s = assignment.grace_s if assignment else 0.0
                found.append(Resident(running.record, grace_s, self._listens(name, running)))
        return found

    # ------------------------------------------------------------ what the processes say (Listener)

    def knows(self, process: str) -> bool:
        return process in self._processes

    def connected(self, process: str) -> None:
        running = self._processes[process]
        assignment = self._assignments.get(running.job)
        if assignment is not None and assignment.generation is not None:
            self._door.tell_generation(process, assignment.generation)
        if self._evacuations.standing is not None:
            self._door.tell_notice(process, self._evacuations.standing)
        if running.is_dismissed:
            self._door.dismiss(process)

    def heard(self, process: str, kind: ToAgent, message: dict[str, Any]) -> None:
        running = self._processes[process]
        match kind:
            case ToAgent.HELLO:
                pass
            case ToAgent.READY:
                if not running.is_ready:
                    running.is_ready = True
                    self._report(replace(self._process_report(process), status=ProcessStatus.READY))
            case ToAgent.PROGRESS:
                self._progress.add(running.job, message["generation"], StepReport.from_wire(message))
            case ToAgent.PULSE:
                self._hangs.hear(running.job, process, message)
            case ToAgent.STRAGGLER | ToAgent.ANOMALY | ToAgent.SAVED:
                self._report(rank_report(running.job, process, kind, message))
            case ToAgent.DURABLE:
                self._report(DurableReport.from_wire({**message, "namespace": self._namespace(running.job)}))
            case _:
                running.is_finished = kind is ToAgent.FINISHED
                self._progress.tell()
                self._report(rank_report(running.job, process, kind, message))

    def _namespace(self, job: str) -> str:
        """Where the job saves, whatever its processes say."""
        assignment = self._assignments.get(job)
        return (assignment.launch.env.get("EVERSTEP_NAMESPACE") if assignment else None) or job

    # ------------------------------------------------------------ starting

    async def _launch(self, process: Process, assignment: Assignment) -> None:
        start = self._launch_plain if assignment.launch.is_plain else self._starter.start
        self._started(await start(process, assignment))

    async def _launch_plain(self, process: Process, assignment: Assignment) -> Started:
        """Holds the process until it has a rank. It is ready when nothing is left here of the generation before, and its zygote stands."""
        job, running = assignment.job, self._processes[process.id]
        await self._bell.until(lambda: running.is_dismissed or not self._has_leftovers(job))
        await self._starter.warm(assignment)
        if not running.is_dismissed:
            running.is_ready = True
            self._report(self._process_report(process.id))
        await self._bell.until(lambda: running.is_dismissed or self._is_member(job, process.id))
        generation = self._assignments[job].generation
        port = None
        if generation is not None and not running.is_dismissed:
            port = await torchrun.master_port(generation, self._bell.until(lambda: running.is_dismissed))
        if port is None:
            return self._starter.never(process, assignment)
        return await self._starter.start(process, self._assignments[job], port=port)

    def _is_member(self, job: str, process: str) -> bool:
        generation = self._assignments[job].generation if job in self._assignments else None
        return generation is not None and generation.rank_of(process) is not None

    def _has_leftovers(self, job: str) -> bool:
        return any(one.job == job and one.is_dismissed and not one.has_exited for one in self._processes.values())

    def _started(self, started: Started) -> None:
        record = started.record
        running = self._processes[record.process]
        running.record = record
        if not record.pid:
            self._ended(record.process, Exit(signal=signal.SIGTERM) if started.was_never_wanted else Exit(code=_CANNOT_START))
            return
        self._report(self._process_report(record.process))
        self._watch(record, started.child)
        if running.is_dismissed:
            self._let_go(record.process, running, 0.0)

    def _watch(self, record: Record, child: subprocess.Popen[bytes] | None = None) -> None:
        name, running = record.process, self._processes[record.process]

        def sweeps(ended: Exit) -> bool:
            return self._is_plain(record.job) and (ended.code != 0 or running.is_dismissed)

        self._exits.watch(record.pid, lambda ended: self._ended(name, ended), child, sweeps=sweeps)

    def _is_plain(self, job: str) -> bool:
        """Its processes are scripts, whose children would hold what the next ones need."""
        return job in self._assignments and self._assignments[job].launch.is_plain

    def _adopt(self, record: Record) -> None:
        """A process of the supervisor before this one. If it has ended meanwhile, that is told now."""
        self._processes[record.process] = Running(record.job, record)
        if record.is_running():
            self._watch(record)
        elif not record.has_exited:
            self._ended(record.process, self._exits.reaped_by_shepherd(record.pid) or Exit())

    # ------------------------------------------------------------ generations and endings

    def _hand_on(self, assignment: Assignment, generation: Generation) -> None:
        job = generation.job
        self._rendezvous.admit(generation)
        first = generation.members[0].process
        if assignment.launch.is_plain and (self.knows(first) or any(first == process.id for process in assignment.processes)):
            port = self._ports.reserve(job, generation.number)
            self._rendezvous.put(generation, torchrun.PORT_KEY, str(port))
        for name, running in self._processes.items():
            if running.job == job and not running.has_exited:
                self._door.tell_generation(name, generation)
        self._hangs.expect(assignment)

    def _ended(self, process: str, ended: Exit) -> None:
        running = self._processes[process]
        if running.record is None:
            return
        running.record = replace(running.record, has_exited=True, exit_code=ended.code, exit_signal=ended.signal)
        running.record.write(self._starter.record_path(process))
        self._progress.tell()
        self._tell_error(process, running.record)
        self._report(self._process_report(process))
        self._bell.ring()
        assignment = self._assignments.get(running.job)
        if assignment is not None and all(process != listed.id for listed in assignment.processes):
            self._forget(process)

    def _tell_error(self, process: str, record: Record) -> None:
        """What a plain script has recorded of its end, unless that was ours to bring about or a good one."""
        told = torchrun.told_error(self._starter.error_path(record.job, process))
        assignment = self._assignments.get(record.job)
        if told and record.exit_code != 0 and not self._processes[process].is_dismissed:
            generation = assignment.generation.number if assignment and assignment.generation else 0
            self._report(FailedReport(record.job, process, generation, told))

    def _listens(self, process: str, running: Running) -> bool:
        """A plain script may be connected, to tell its steps. It hears nothing."""
        return self._door.is_connected(process) and not self._is_plain(running.job)

    def _let_go(self, process: str, running: Running, grace_s: float) -> None:
        if running.has_exited:
            self._forget(process)
            return
        running.is_dismissed = True
        if running.record is None or running.ending is not None:
            return  # still being started: it is let go as soon as it exists
        patience = min(grace_s, HUNG_GRACE_S) if self._hangs.is_hung(process) else grace_s
        running.ending = self._run(self._end(process, running.record, patience))

    async def _end(self, process: str, record: Record, grace_s: float) -> None:
        """DISMISS, half of the grace later SIGTERM, at its end SIGKILL. Who does not listen on the socket gets SIGTERM at once."""
        gone = asyncio.ensure_future(processes.until_gone(record.pid))
        polite = grace_s / 2 if self._listens(process, self._processes[process]) else 0.0
        self._door.dismiss(process)
        for number, patience in ((signal.SIGTERM, polite), (signal.SIGKILL, grace_s - polite)):
            await asyncio.wait([gone], timeout=patience)
            if gone.done():
                return
            processes.kill(record, number)
        await gone

    def _forget(self, process: str) -> None:
        running = self._processes.pop(process, None)
        self._hangs.forget(process)
        self._starter.record_path(process).unlink(missing_ok=True)
        if running is not None and not self._is_wanted(running.job):
            self._assignments.pop(running.job, None)
            self._prefetch.forget(running.job)
        self._standby.look()

    def _forget_job(self, job: str) -> None:
        """Nothing of it is to run here. Its assignment is kept while something of it still does."""
        self._rendezvous.forget(job)
        self._ports.release(job)
        if not self._is_wanted(job):
            self._assignments.pop(job, None)
            self._prefetch.forget(job)
        self._standby.look()

    def _is_wanted(self, job: str) -> bool:
        """Something of it runs here, or should."""
        assignment = self._assignments.get(job)
        is_listed = assignment is not None and bool(assignment.processes)
        return is_listed or any(running.job == job for running in self._processes.values())

    def _is_idle(self) -> bool:
        return not self._processes

    # ------------------------------------------------------------ reports

    def _process_report(self, process: str) -> ProcessReport:
        running = self._processes[process]
        record = running.record
        if record is None or not record.has_exited:
            status = ProcessStatus.READY if running.is_ready else ProcessStatus.STARTED
            return ProcessReport(running.job, process, status, pid=record.pid if record else None)
        return ProcessReport(
            running.job,
            process,
            ProcessStatus.EXITED,
            pid=record.pid,
            exit_code=record.exit_code,
            signal=record.exit_signal,
            tail=processes.tail_of(record.log),
        )

    def _run(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_older(one: Generation | None, other: Generation | None) -> bool:
    return (one.number if one else 0) < (other.number if other else 0)
