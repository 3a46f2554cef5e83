"""Breaks things on purpose, as the control plane asks: a rank is killed or stopped, or the whole node goes.

Each fault strikes once: it is claimed by creating a file before anything is done, so that an agent that is started again, and told of it again,
strikes no second time. A rank that was stopped goes on when its time is over, whichever start of the agent it was that stopped it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent import processes
from agent.processes import Record
from everstep.protocol import NODE_ID_VARIABLE, Fault, FaultOutcome, FaultReport, Report

_LAST_WORDS_S = 1.0


@dataclass(frozen=True)
class _Claim:
    """What is on disk about a fault. ``until`` is in Unix seconds; None: until it is cleared."""

    pid: int = 0
    start_time: int = 0
    until: float | None = None
    is_done: bool = False


class Faults:
    """``find`` gives the record of a process that this node has; ``strike`` has the memory tier break something of its own.

    ``told`` returns when all reports so far have arrived.
    """

    def __init__(
        self,
        node_id: str,
        state_dir: Path,
        *,
        find: Callable[[str], Record | None],
        strike: Callable[[Fault], Awaitable[FaultReport]],
        report: Callable[[Report], None],
        told: Callable[[], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._folder = state_dir / "faults"
        self._find = find
        self._strike_tier = strike
        self._report = report
        self._told = told
        self._timers: dict[str, asyncio.Task[None]] = {}

    async def hear(self, fault: Fault) -> None:
        """Strikes, ends, or repeats what came of it, as it may be told again."""
        claim = self._read(fault.id)
        if fault.is_over:
            self._end(fault, claim)
        elif claim is None:
            await self._strike(fault)
        elif claim.is_done:
            self._tell(fault, FaultOutcome.STRUCK if fault.kind != "hang-rank" else FaultOutcome.ENDED, None)
        else:
            self._hold(fault, claim)

    async def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case "kill-node":
                await self._kill_node(fault)
            case "kill-rank" | "hang-rank":
                record = self._find(fault.process or "")
                if record is None or not record.is_running():
                    self._tell(fault, FaultOutcome.MISSED, f"process {fault.process} does not run here")
                elif fault.kind == "kill-rank":
                    self._write(fault.id, _Claim(is_done=True))
                    processes.kill(record, signal.SIGKILL)
                    self._tell(fault, FaultOutcome.STRUCK, f"SIGKILL to {record.pid}")
                else:
                    until = None if fault.seconds is None else time.time() + fault.seconds
                    claim = _Claim(record.pid, record.start_time, until)
                    self._write(fault.id, claim)
                    processes.kill(record, signal.SIGSTOP)
                    self._hold(fault, claim)
            case "corrupt-shard":
                self._write(fault.id, _Claim(is_done=True))
                self._report(await self._strike_tier(fault))
            case _:
                self._tell(fault, FaultOutcome.MISSED, f"this agent knows no fault {fault.kind}")

    async def _kill_node(self, fault: Fault) -> None:
        """Says so first: afterwards there is nobody left who could."""
        self._write(fault.id, _Claim(is_done=True))
        self._tell(fault, FaultOutcome.STRUCK, "SIGKILL to everything on the node")
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._told()
        kill_node(self._node_id)

    def _hold(self, fault: Fault, claim: _Claim) -> None:
        self._tell(fault, FaultOutcome.HOLDING, f"SIGSTOP to {claim.pid}")
        if fault.id not in self._timers:
            self._timers[fault.id] = asyncio.get_running_loop().create_task(self._release_later(fault, claim))

    async def _release_later(self, fault: Fault, claim: _Claim) -> None:
        """When its time is over, or what was struck is gone."""
        limit_s = None if claim.until is None else max(0.0, claim.until - time.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await processes.until_gone(claim.pid)
        self._release(fault, claim)

    def _end(self, fault: Fault, claim: _Claim | None) -> None:
        timer = self._timers.pop(fault.id, None)
        if timer is not None:
            timer.cancel()
        if claim is None:
            self._write(fault.id, _Claim(is_done=True))
            self._tell(fault, FaultOutcome.ENDED, "taken back before it struck")
        elif claim.is_done and fault.kind != "hang-rank":
            self._tell(fault, FaultOutcome.STRUCK, None)
        else:
            self._release(fault, claim)

    def _release(self, fault: Fault, claim: _Claim) -> None:
        record = Record("", fault.process or "", "", claim.pid, claim.start_time)
        processes.kill(record, signal.SIGCONT)
        self._write(fault.id, _Claim(is_done=True))
        self._timers.pop(fault.id, None)
        self._tell(fault, FaultOutcome.ENDED, f"SIGCONT to {claim.pid}")

    def _tell(self, fault: Fault, outcome: FaultOutcome, note: str | None) -> None:
        self._report(FaultReport(fault.id, outcome, note))

    def _read(self, fault_id: str) -> _Claim | None:
        try:
            wire: dict[str, Any] = json.loads((self._folder / f"{fault_id}.json").read_text())
            return _Claim(**wire)
        except FileNotFoundError:
            return None

    def _write(self, fault_id: str, claim: _Claim) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{fault_id}.json"
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(claim)))
        draft.replace(path)


def kill_node(node_id: str) -> None:
    """SIGKILL to every process that carries the node's name, the caller last. Twice: its init may be about to start something."""
    mark = f"{NODE_ID_VARIABLE}={node_id}".encode()
    for _ in range(2):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _carries(entry, mark):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(entry.name), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _carries(entry: Path, mark: bytes) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
