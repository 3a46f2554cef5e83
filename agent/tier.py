"""The node's memory tier, as its agent sees it: a process beside it that is started, adopted, told its plan, and listened to.

Nothing here waits for the tier, and no training process ends with it: one that dies is started again and finds its shards where they were, and
an agent that is started again finds the tier running. Only a plan without a tier, or the node's end, ends the process and gives its memory back.

They speak JSON lines over a Unix socket that the tier serves: ``{"plan": …}`` and ``{"fault": …}`` to it, ``{"report": …}`` from it. What a
report says is said again on every new conversation, so none is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from agent import processes
from agent.processes import Record
from agent.ranks import socket_path
from everstep.protocol import Fault, FaultOutcome, FaultReport, Report, report_from_wire
from everstep.tiers import NamespacePlan, TierPlan, TierReport

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "agent.memory_tier")
CONTROL_VARIABLE = "EVERSTEP_MEMORY_TIER_CONTROL"
SOCKET_VARIABLE = "EVERSTEP_CHECKPOINT_SOCKET"
DIRECTORY_VARIABLE = "EVERSTEP_MEMORY_TIER_DIR"
PLAN_PATIENCE_S = 2.0
"""How long the start of a process waits for the plan of its namespace, which the control plane tells beside its assignment."""
FAULT_PATIENCE_S = 5.0
OFF_PATIENCE_S = 35.0
"""How long a tier that is to end may take to drain what is to be durable, which it does for 30 s at most, and to give its memory back."""
GRACE_S = 3.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 10.0
"""A tier that lived this long did not die of its start; the next one starts at once."""
_KNOCK_S = 0.05
_LONGEST_KNOCK_S = 1.0
_LONGEST_LINE = 16 << 20
_LONGEST_LOG = 1 << 20


@dataclass(frozen=True)
class TierSettings:
    """``environment`` is what the process gets besides its sockets and its folder: no boot token is in it. ``folder`` is where its memory lies."""

    state_dir: Path
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    command: tuple[str, ...] = COMMAND


class Tier:
    """One per node. All methods are called from one event loop; ``report`` is called from it too and must not block."""

    def __init__(self, settings: TierSettings, report: Callable[[Report], None]) -> None:
        self._settings = settings
        self._report = report
        self.door = socket_path(settings.state_dir, "tier")
        """Where training processes are handed segments."""
        self._control = socket_path(settings.state_dir, "tier-control")
        self._plan: TierPlan | None = None
        self._planned = asyncio.Event()
        self._change = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._record: Record | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: dict[str, asyncio.Future[FaultReport]] = {}
        self._is_off = asyncio.Event()
        self._last_words: str | None = None
        self._keeping: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ what the agent calls

    async def start(self) -> None:
        """Adopts a tier that runs. One that ran when this node's agent was last alive is started again before any plan has come: it kept its own."""
        found = [record for record in processes.read_records(self._record_path.parent) if record.process == "tier"]
        self._record = found[0] if found else None
        self._keeping = asyncio.create_task(self._keep())

    def take(self, plan: TierPlan) -> None:
        """The newest plan, whole: it is handed on, and decides whether there is a tier."""
        self._plan = plan
        self._is_off.clear()
        self._say({"plan": plan.to_wire()})
        self._planned.set()
        self._planned = asyncio.Event()
        self._change.set()

    async def variables(self, job: str, namespace: str | None) -> dict[str, str]:
        """What a process of a job is told. ``namespace`` is that of its assignment, whose plan is waited for, but not for long."""
        found = self._namespace(job, namespace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PLAN_PATIENCE_S):
                while found is None and namespace is not None:
                    await self._planned.wait()
                    found = self._namespace(job, namespace)
        told = {SOCKET_VARIABLE: str(self.door), "EVERSTEP_NAMESPACE": found.name if found else namespace or job}
        return told | (_policy(found) if found else {})

    async def strike(self, fault: Fault) -> FaultReport:
        """Has the tier break something of its own; says what came of it."""
        answer: asyncio.Future[FaultReport] = asyncio.get_running_loop().create_future()
        self._asked[fault.id] = answer
        try:
            if not self._say({"fault": fault.to_wire()}):
                return FaultReport(fault.id, FaultOutcome.MISSED, "no memory tier runs on this node")
            async with asyncio.timeout(FAULT_PATIENCE_S):
                return await answer
        except TimeoutError:
            return FaultReport(fault.id, FaultOutcome.MISSED, f"the memory tier did not answer within {FAULT_PATIENCE_S:.0f} s")
        finally:
            del self._asked[fault.id]

    async def stop(self, *, is_node_gone: bool) -> None:
        """Ends the process. Its memory is kept for the next start of this agent, unless the node is no more."""
        await self._let_go()
        if self._record is not None:
            await self._end(self._record)
        if is_node_gone:
            await self._clear()

    async def detach(self) -> None:
        """Lets go of it without ending it, as a crash of the agent would."""
        await self._let_go()
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # it is to outlive us; Popen would warn about a child that it was not told to forget

    async def _let_go(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    # ------------------------------------------------------------ keeping it alive, or ending it

    @property
    def _record_path(self) -> Path:
        return self._settings.state_dir / "memory_tier" / "process.json"

    @property
    def _is_wanted(self) -> bool:
        """Without a plan a tier that has been there is wanted: it remembers its own."""
        return self._record is not None if self._plan is None else self._plan.allocation_percent is not None

    async def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            self._change.clear()
            if not self._is_wanted:
                await self._switch_off()
                await self._change.wait()
                continue
            began = loop.time()
            try:
                await self._attend(self._present())
            except OSError as error:
                log.warning("the memory tier cannot be started, trying on: %s", error)
            if self._is_wanted:
                pause_s = _FIRST_PAUSE_S if loop.time() - began > _STEADY_S else min(_LONGEST_PAUSE_S, pause_s * 2)
                log.warning("the memory tier has ended; it is started again in %.1f s", pause_s)
                await self._rest(pause_s)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_wanted:
                    self._change.clear()
                    await self._change.wait()

    def _present(self) -> Record:
        """The tier that runs, or a new one. Raises OSError."""
        if self._record is not None and self._record.is_running():
            return self._record
        self._record_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal = self._settings.state_dir / "memory_tier.log"
        if journal.exists() and journal.stat().st_size > _LONGEST_LOG:
            journal.replace(journal.with_suffix(".log.old"))
        environment = {
            **self._settings.environment,
            SOCKET_VARIABLE: str(self.door),
            CONTROL_VARIABLE: str(self._control),
            DIRECTORY_VARIABLE: str(self._settings.folder),
        }
        self._child = processes.spawn(list(self._settings.command), environment, str(self._settings.state_dir), journal)
        started = processes.start_time(self._child.pid) or 0
        self._record = Record("", "tier", str(journal), self._child.pid, started)
        self._record.write(self._record_path)
        return self._record

    async def _attend(self, record: Record) -> None:
        """Until the process is gone, or not wanted any more."""
        gone = asyncio.create_task(processes.until_gone(record.pid))
        talk = asyncio.create_task(self._talk())
        try:
            while not gone.done() and self._is_wanted:
                self._change.clear()
                change = asyncio.create_task(self._change.wait())
                await asyncio.wait((gone, change), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
            if not gone.done():
                await self._end_politely()
                await self._end(record)
            elif self._child is not None:
                self._child.wait()
        finally:
            gone.cancel()
            talk.cancel()
            await asyncio.gather(gone, talk, return_exceptions=True)

    async def _end_politely(self) -> None:
        """It has been told that it is off, and says when its memory has been given back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OFF_PATIENCE_S):
                await self._is_off.wait()

    async def _end(self, record: Record) -> None:
        """SIGTERM, and after the grace SIGKILL."""
        gone = asyncio.ensure_future(processes.until_gone(record.pid)) if record.is_running() else None
        for number, patience in ((SIGTERM, GRACE_S), (SIGKILL, None)):
            if gone is None or gone.done():
                break
            processes.kill(record, number)
            await asyncio.wait([gone], timeout=patience)
        if self._child is not None:
            self._child.wait()
            self._child = None

    async def _switch_off(self) -> None:
        """There is to be none. What a tier before has left is given back, which nobody else would do any more."""
        if self._plan is None:
            return
        had_one = self._record is not None or self._settings.folder.exists()
        if self._record is not None:
            await self._end(self._record)
        self._record = None
        self._record_path.unlink(missing_ok=True)
        await self._clear()
        if had_one:
            note = " ".join(filter(None, ("The memory tier is off; its memory has been given back.", self._last_words)))
            self._last_words = None
            self._report(TierReport(self._plan.number, 0, 0, note=note, at=time.time()))

    async def _clear(self) -> None:
        folder = self._settings.folder
        if folder.is_mount():
            await asyncio.to_thread(subprocess.run, ["umount", "--lazy", str(folder)], check=False, capture_output=True)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    # ------------------------------------------------------------ talking with it

    async def _talk(self) -> None:
        """Conversations, one after the other: the tier serves its socket a moment after its start, and anew after each of its own troubles."""
        pause_s = _KNOCK_S
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._control, limit=_LONGEST_LINE)
            except OSError:
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_KNOCK_S, pause_s * 2)
                continue
            pause_s = _KNOCK_S
            try:
                if self._plan is not None:
                    self._say({"plan": self._plan.to_wire()})
                with contextlib.suppress(OSError, ValueError):
                    while line := await reader.readline():
                        self._hear(line)
            finally:
                self._writer.close()
                self._writer = None
            await asyncio.sleep(pause_s)

    def _say(self, message: dict[str, Any]) -> bool:
        """Never waits. What is not taken now, the plan of the next conversation repairs."""
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        return True

    def _hear(self, line: bytes) -> None:
        try:
            report = report_from_wire(json.loads(line)["report"])
        except (ValueError, KeyError, TypeError):
            log.exception("the memory tier said something that cannot be read: %d bytes", len(line))
            return
        if isinstance(report, FaultReport):
            answer = self._asked.get(report.fault)
            if answer is not None and not answer.done():
                answer.set_result(report)
            return
        self._report(report)
        if (
            isinstance(report, TierReport)
            and self._plan is not None
            and report.plan == self._plan.number
            and report.used_bytes == 0
        ):
            self._last_words = report.note
            self._is_off.set()

    def _namespace(self, job: str, namespace: str | None) -> NamespacePlan | None:
        planned = self._plan.namespaces if self._plan else ()
        of_job = (one for one in planned if one.name == namespace or (namespace is None and one.job == job))
        return next(of_job, None)


def _policy(plan: NamespacePlan) -> dict[str, str]:
    """What a process has to know also when the tier that would tell it is off, or away."""
    told = {"EVERY": plan.memory_every, "DURABLE_EVERY": plan.durable_every, "MTBF_S": plan.mtbf_s}
    known = {f"EVERSTEP_CHECKPOINT_{name}": str(value) for name, value in told.items() if value is not None}
    return {"EVERSTEP_CHECKPOINT_TOKEN": plan.token, **known}
