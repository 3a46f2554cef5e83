"""Examines the node as the control plane asks, in children of the agent, and tells what was found.

What was found is kept until the control plane stops asking: an agent that is started again tells it again instead of burning once more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from agent.health import findings, links, stress
from agent.health.limits import Limits
from agent.health.reduce import Reducer
from agent.kept import keep_newest
from everstep.examination import Check, Finding, HealthReport, Verdict
from everstep.protocol import Report

log = logging.getLogger(__name__)
TRAINING = "MultiNodeTrainingValidation"
_MARGIN_S = 60.0
DIAGNOSIS_S = 1500.0
"""Within the time in which the control plane waits for an answer, and more than any adapter's diagnosis takes."""
_MOST_KEPT = 64
"""How many examinations' findings stay on disk. The control plane asks for few at a time."""
_SLACK = 12
_NO_TORCH = "No module named 'torch'"
Examination = Callable[[Check], Awaitable[list[Finding]]]


class Examiner:
    """``environment`` is what the children see; ``report`` must not block. ``is_busy``: whether the node has work that is not to be disturbed."""

    def __init__(
        self,
        *,
        node_id: str,
        address: str,
        processors: int,
        state_dir: Path,
        environment: Mapping[str, str],
        report: Callable[[Report], None],
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._node_id = node_id
        self._address = address
        self._processors = processors
        self._state_dir = state_dir
        self._folder = state_dir / "health"
        self._environment = dict(environment)
        self._limits = Limits.read(environment)
        self._report = report
        self._reducer = Reducer(address, self._limits, child=self._child, is_busy=is_busy)
        self._door = links.Door(address, self._reducer.join)
        self._at_work: set[str] = set()
        self._examinations: dict[str, Examination] = {
            stress.KIND: self._stress,
            links.KIND: self._links,
            TRAINING: self._training,
        }

    async def start(self) -> int:
        """Opens the door for peers; returns its port."""
        return await self._door.open()

    async def stop(self) -> None:
        self._door.close()
        await self._reducer.stop()

    async def hear(self, check: Check) -> None:
        """Examines once; told again, it repeats what it found, or goes on."""
        if check.id in self._at_work:
            return
        self._at_work.add(check.id)
        try:
            found = self._kept(check.id)
            if found is None:
                found = await self._examine(check)
                self._keep(check.id, found)
            for finding in found:
                log.log(logging.WARNING if finding.verdict is Verdict.FAILED else logging.INFO, "%s", finding.says)
            self._report(HealthReport(check=check.id, findings=tuple(found)))
        finally:
            self._at_work.discard(check.id)

    async def _examine(self, check: Check) -> list[Finding]:
        found: list[Finding] = []
        for kind in check.kinds:
            examination = self._examinations.get(kind)
            if examination is None:
                found.append(findings.skipped(kind, "this agent knows no such check"))
                continue
            try:
                found += await examination(check)
            except Exception as error:  # what goes wrong with a check is found, and no check may hold up the others
                log.exception("%s could not be carried out", kind)
                found.append(findings.failed(kind, f"it could not be carried out: {error}"))
        return found

    async def _stress(self, _: Check) -> list[Finding]:
        self._folder.mkdir(parents=True, exist_ok=True)
        limit_s = self._limits.stress_s * _SLACK + _MARGIN_S
        command = [sys.executable, "-P", "-m", "agent.health.stress", str(self._processors), str(self._folder)]
        code, output = await self._child([*command, json.dumps(asdict(self._limits))], limit_s)
        if code != 0:
            return [findings.failed(stress.KIND, f"it ended with {code}: {output[-500:].strip()}")]
        return stress.judge(json.loads(output.splitlines()[-1]), self._limits) + await self._devices()

    async def _devices(self) -> list[Finding]:
        level = int(self._limits.accelerator_level)
        command = [sys.executable, "-P", "-m", "agent.health", str(self._state_dir), self._node_id, str(level)]
        code, output = await self._child(command, DIAGNOSIS_S)
        if code != 0:
            return [findings.failed(stress.KIND, f"diagnosing the accelerators ended with {code}: {output[-500:].strip()}")]
        return [Finding.from_wire(wire) for wire in json.loads(output.splitlines()[-1])]

    async def _links(self, check: Check) -> list[Finding]:
        measured = [await links.measure(peer, self._limits) for peer in check.peers]
        found = links.judge(measured, self._limits)
        if not measured or any(finding.verdict is Verdict.FAILED for finding in found):
            return found
        return found + await self._reducer.examine(check)

    async def _training(self, check: Check) -> list[Finding]:
        team = check.team
        if team is None:
            return [findings.skipped(TRAINING, "the node was given nobody to train with")]
        command = [sys.executable, "-P", "-m", "everstep.validation", "--rank", str(team.rank), "--size", str(team.size)]
        command += ["--meet", f"{team.address}:{team.port}", "--address", self._address]
        limit_s = self._limits.training_s
        code, output = await self._child([*command, "--seconds", f"{limit_s:g}"], limit_s + _MARGIN_S)
        said = output.strip().splitlines()[-1] if output.strip() else "it said nothing"
        if code == 0:
            return [findings.passed(TRAINING, said)]
        if _NO_TORCH in said:
            return [findings.skipped(TRAINING, "there is no torch on this node")]
        return [findings.failed(TRAINING, f"among {team.size} nodes: {said}")]

    async def _child(self, command: list[str], limit_s: float) -> tuple[int, str]:
        with tempfile.TemporaryFile() as output:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *command,
                    env=self._environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
            try:
                child = await asyncio.shield(starting)  # a start that is given up half-way would leave a child that nobody knows
                async with asyncio.timeout(limit_s):
                    code = await child.wait()
            except TimeoutError:
                _kill_group(child.pid)
                await child.wait()
                return -signal.SIGKILL, f"ended after its time limit of {limit_s:g} s"
            except asyncio.CancelledError:
                child = await starting
                _kill_group(child.pid)
                await child.wait()
                raise
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def _kept(self, check_id: str) -> list[Finding] | None:
        try:
            return [Finding.from_wire(wire) for wire in json.loads((self._folder / f"{check_id}.json").read_text())]
        except (OSError, ValueError):
            return None

    def _keep(self, check_id: str, found: list[Finding]) -> None:
        """As well as can be: a full disk is a finding, and must be told."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = self._folder / f".{check_id}.json"
            draft.write_text(json.dumps([finding.to_wire() for finding in found]))
            draft.replace(self._folder / f"{check_id}.json")
            keep_newest(self._folder, _MOST_KEPT)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
