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
from everstep.examination import Check, Finding, HealthReport
from everstep.protocol import Report

log = logging.getLogger(__name__)
TRAINING = "MultiNodeTrainingValidation"
_MARGIN_S = 60.0
_SLACK = 12
_NO_TORCH = "No module named 'torch'"
Examination = Callable[[Check], Awaitable[list[Finding]]]


class Examiner:
    """``environment`` is what the children see; ``report`` must not block."""

    def __init__(
        self,
        *,
        address: str,
        processors: int,
        state_dir: Path,
        environment: Mapping[str, str],
        report: Callable[[Report], None],
    ) -> None:
        self._address = address
        self._processors = processors
        self._folder = state_dir / "health"
        self._environment = dict(environment)
        self._limits = Limits.read(environment)
        self._report = report
        self._door = links.Door(address)
        self._at_work: set[str] = set()
        self._examinations: dict[str, Examination] = {
            stress.KIND: self._stress,
            links.KIND: self._links,
            TRAINING: self._training,
        }

    async def start(self) -> int:
        """Opens the door for peers; returns its port."""
        return await self._door.open()

    def stop(self) -> None:
        self._door.close()

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
        return stress.judge(json.loads(output.splitlines()[-1]), self._limits)

    async def _links(self, check: Check) -> list[Finding]:
        measured = [await links.measure(peer, self._limits) for peer in check.peers]
        return links.judge(measured, self._limits)

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
            child = await asyncio.create_subprocess_exec(
                *command,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(limit_s):
                    code = await child.wait()
            except TimeoutError:
                _kill_group(child.pid)
                await child.wait()
                return -signal.SIGKILL, f"ended after its time limit of {limit_s:g} s"
            except asyncio.CancelledError:
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


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
