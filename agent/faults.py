"""Breaks things on purpose, as the control plane asks: a rank is killed or stopped, an accelerator errs, the whole node goes.

Each fault strikes once: it is claimed by creating a file before anything is done, so that an agent that is started again, and told of it again,
strikes no second time. What lasts goes on after the agent has been started anew, and ends when its time is over, whichever start it was that
began it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent import processes
from agent.accelerators.script import Script
from agent.kept import keep_newest
from agent.lasting import Claim, Effect, Hang, Notice, Partition, Slow
from agent.network import Network
from agent.processes import Record
from everstep.notices import SpotNotice
from everstep.protocol import NODE_ID_VARIABLE, Fault, FaultOutcome, FaultReport, ProcessReport, ProcessStatus, Report

_LAST_WORDS_S = 1.0
_MOST_KEPT = 256
"""How many faults stay on disk, besides those that last: more than the control plane ever tells again."""
_LASTING = frozenset({"hang-rank", "slow-node", "partition", "spot-notice"})
ACCELERATORS = "EVERSTEP_ACCELERATORS"
RECLAIM_FILE = "EVERSTEP_RECLAIM_FILE"
"""Where a provider looks for the word that it has taken this host back, and knows it no longer."""


class Running:
    """What the faults need to know of the node's processes: ``inventory`` lists them, ``record`` finds one by its name."""

    def __init__(self, inventory: Callable[[], tuple[ProcessReport, ...]], record: Callable[[str], Record | None]) -> None:
        self.record = record
        self._inventory = inventory

    def running(self) -> list[Record]:
        named = [told.process for told in self._inventory() if told.status is not ProcessStatus.EXITED]
        return [record for name in named if (record := self.record(name)) is not None and record.is_running()]


@dataclass(frozen=True)
class Means:
    """What faults are done with. ``strike`` has the memory tier break something of its own; ``announce`` gives a notice as the provider's."""

    runs: Running
    network: Network
    strike: Callable[[Fault], Awaitable[FaultReport]]
    announce: Callable[[SpotNotice], None]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class _Held:
    effect: Effect
    timer: asyncio.Task[None]


class Faults:
    """``told`` returns when all reports so far have arrived."""

    def __init__(
        self, node_id: str, state_dir: Path, means: Means, *, report: Callable[[Report], None], told: Callable[[], Awaitable[None]]
    ) -> None:
        self._node_id = node_id
        self._state_dir = state_dir
        self._folder = state_dir / "faults"
        self._means = means
        self._report = report
        self._told = told
        self._held: dict[str, _Held] = {}

    def resume(self) -> None:
        """Takes up what lasts and was begun by an earlier start of the agent. Before anything is said to the control plane."""
        for path in sorted(self._folder.glob("*.json")):
            claim = self._read(path.stem)
            if claim is not None and not claim.is_done:
                self._begin(path.stem, claim, self._effect(path.stem, claim))

    async def hear(self, fault: Fault) -> None:
        """Strikes, ends, or repeats what came of it, as it may be told again."""
        claim = self._read(fault.id)
        if fault.is_over:
            self._end(fault, claim)
        elif claim is None:
            await self._strike(fault)
        elif claim.is_done:
            self._repeat(fault)
        else:
            effect = self._effect(fault.id, claim)
            self._tell(fault.id, FaultOutcome.HOLDING, effect.note)
            self._begin(fault.id, claim, effect)

    async def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case "kill-node" | "spot-reclaim":
                await self._kill_node(fault)
            case "kill-rank" | "hang-rank":
                await self._strike_rank(fault)
            case "xid":
                self._strike_accelerator(fault)
            case "slow-node" | "partition" | "spot-notice":
                await self._last(fault, Claim(kind=fault.kind, at=time.time(), until=_until(fault)))
            case "corrupt-shard":
                self._write(fault.id, Claim(is_done=True))
                self._report(await self._means.strike(fault))
            case _:
                self._tell(fault.id, FaultOutcome.MISSED, f"this agent knows no fault {fault.kind}")

    async def _strike_rank(self, fault: Fault) -> None:
        record = self._means.runs.record(fault.process or "")
        if record is None or not record.is_running():
            self._tell(fault.id, FaultOutcome.MISSED, f"process {fault.process} does not run here")
        elif fault.kind == "kill-rank":
            self._write(fault.id, Claim(is_done=True))
            processes.kill(record, signal.SIGKILL)
            self._tell(fault.id, FaultOutcome.STRUCK, f"SIGKILL to {record.pid}")
        else:
            await self._last(fault, Claim(record.pid, record.start_time, _until(fault), at=time.time()))

    def _strike_accelerator(self, fault: Fault) -> None:
        why_not = why_not_simulated(self._means.environment)
        if why_not is not None:
            self._tell(fault.id, FaultOutcome.MISSED, why_not)
            return
        code, device = fault.code or 0, fault.device or 0
        self._write(fault.id, Claim(is_done=True, kind=fault.kind))
        Script(self._state_dir).xid(code, device)
        self._tell(fault.id, FaultOutcome.STRUCK, f"Xid {code} of accelerator {device} is in the kernel log")

    async def _kill_node(self, fault: Fault) -> None:
        """Says so first: afterwards there is nobody left who could."""
        reclaim_file = self._means.environment.get(RECLAIM_FILE)
        if fault.kind == "spot-reclaim" and not reclaim_file:
            why = f"{RECLAIM_FILE} is not set: only local hosts can be taken back from here; end this one at its provider"
            self._tell(fault.id, FaultOutcome.MISSED, why)
            return
        self._write(fault.id, Claim(is_done=True, kind=fault.kind))
        self._tell(fault.id, FaultOutcome.STRUCK, "SIGKILL to everything on the node")
        await self._last_words()
        kill_node(self._node_id, Path(reclaim_file) if fault.kind == "spot-reclaim" and reclaim_file else None)

    async def _last_words(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._told()

    # ------------------------------------------------------------ what lasts

    async def _last(self, fault: Fault, claim: Claim) -> None:
        self._write(fault.id, claim)
        effect = self._effect(fault.id, claim)
        self._tell(fault.id, FaultOutcome.HOLDING, effect.note)
        if fault.kind == "partition":
            await self._last_words()
        self._begin(fault.id, claim, effect)

    def _effect(self, fault_id: str, claim: Claim) -> Effect:
        match claim.kind:
            case "partition":
                return Partition(fault_id, self._means.network)
            case "slow-node":
                return Slow(self._means.runs.running)
            case "spot-notice":
                return Notice(claim, self._means.announce)
            case _:
                return Hang(claim)

    def _begin(self, fault_id: str, claim: Claim, effect: Effect) -> None:
        if fault_id in self._held:
            return
        effect.begin()
        timer = asyncio.get_running_loop().create_task(self._release_later(fault_id, claim, effect))
        self._held[fault_id] = _Held(effect, timer)

    async def _release_later(self, fault_id: str, claim: Claim, effect: Effect) -> None:
        """When its time is over, or what was struck is gone."""
        limit_s = None if claim.until is None else max(0.0, claim.until - time.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await effect.last()
        self._release(fault_id, claim, effect, is_cleared=False)

    def _end(self, fault: Fault, claim: Claim | None) -> None:
        if claim is None:
            self._write(fault.id, Claim(is_done=True, kind=fault.kind))
            self._tell(fault.id, FaultOutcome.ENDED, "taken back before it struck")
            return
        held = self._held.get(fault.id)
        if held is not None:
            held.timer.cancel()
        if claim.is_done:
            self._repeat(fault)
        else:
            effect = held.effect if held else self._effect(fault.id, claim)
            self._release(fault.id, claim, effect, is_cleared=True)

    def _release(self, fault_id: str, claim: Claim, effect: Effect, *, is_cleared: bool) -> None:
        how = effect.end(is_cleared=is_cleared)
        self._write(fault_id, replace(claim, is_done=True))
        self._held.pop(fault_id, None)
        self._tell(fault_id, FaultOutcome.ENDED, how)

    # ------------------------------------------------------------ words and files

    def _repeat(self, fault: Fault) -> None:
        self._tell(fault.id, FaultOutcome.ENDED if fault.kind in _LASTING else FaultOutcome.STRUCK, None)

    def _tell(self, fault_id: str, outcome: FaultOutcome, note: str | None) -> None:
        self._report(FaultReport(fault_id, outcome, note))

    def _read(self, fault_id: str) -> Claim | None:
        try:
            wire: dict[str, Any] = json.loads((self._folder / f"{fault_id}.json").read_text())
            return Claim(**wire)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            return Claim(is_done=True)  # the host went down while it was written: it is not struck a second time

    def _write(self, fault_id: str, claim: Claim) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{fault_id}.json"
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(claim)))
        draft.replace(path)
        with suppress(OSError):
            keep_newest(self._folder, _MOST_KEPT, may_go=self._is_done)

    def _is_done(self, path: Path) -> bool:
        claim = self._read(path.stem)
        return claim is None or claim.is_done


def why_not_simulated(environment: Mapping[str, str]) -> str | None:
    """Why no driver's line can be made up here: the accelerators of the node are real, or there are none, or they are not NVIDIA's."""
    said = environment.get(ACCELERATORS, "")
    name, _, vendor = said.partition(":")
    if name == "simulated" and vendor in {"", "nvidia"}:
        return None
    has = f"{ACCELERATORS} is {said!r}" if said else f"{ACCELERATORS} is not set"
    return f"this node has no simulated accelerators of NVIDIA's ({has}); start it with {ACCELERATORS}=simulated:nvidia"


def kill_node(node_id: str, reclaim_file: Path | None = None) -> None:
    """SIGKILL to every process that carries the node's name, the caller last. Twice: its init may be about to start something."""
    if reclaim_file is not None:
        reclaim_file.touch()
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


def _until(fault: Fault) -> float | None:
    return None if fault.seconds is None else time.time() + fault.seconds
