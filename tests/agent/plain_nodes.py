"""Two real supervisors on one machine, and what a control plane would tell them of a plain job."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.supervisor import Supervisor
from everstep.protocol import (
    Assignment,
    FailedReport,
    Generation,
    Launch,
    Member,
    Process,
    ProcessReport,
    ProcessStatus,
    Report,
    StepReport,
)
from tests.patience import PATIENCE

JOB = "j-plain"


@dataclass
class Nodes:
    """``per_node`` processes of the job on each of two nodes. Every report of both is in ``reports``."""

    folder: Path
    launch: Launch
    per_node: int = 1
    reports: list[Report] = field(default_factory=list)
    generation: Generation | None = None
    listed: dict[str, tuple[Process, ...]] = field(default_factory=dict)
    minted: int = 0

    def __post_init__(self) -> None:
        self.supervisors = {f"i-{number}": self._supervisor(number) for number in (1, 2)}
        self.addresses = {f"i-{number}": f"127.0.0.{number}" for number in (1, 2)}
        self.ports: dict[str, int] = {}

    def _supervisor(self, number: int) -> Supervisor:
        return Supervisor(
            node_id=f"i-{number}",
            address=f"127.0.0.{number}",
            state_dir=self.folder / f"state{number}",
            report=self.reports.append,
            environment={"PATH": os.environ["PATH"], "GLOO_SOCKET_IFNAME": "lo"},
        )

    async def hold(self) -> None:
        """New processes on both nodes, in place of those before them, held until a generation names them."""
        for node in self.supervisors:
            self.listed[node] = tuple(Process(self._mint(), local_rank=rank) for rank in range(self.per_node))
        await self.tell()
        await self.until(lambda: self.new <= {report.process for report in self.of(ProcessStatus.READY)})

    async def form(self) -> Generation:
        """The next generation, of all that is held."""
        names = [(node, process) for node, listed in self.listed.items() for process in listed]
        members = tuple(
            Member(rank, process.id, f"the row of {node}", self.addresses[node], process.local_rank)
            for rank, (node, process) in enumerate(names)
        )
        number = self.generation.number + 1 if self.generation else 1
        self.generation = Generation(JOB, number, "test", members, f"{self.addresses['i-1']}:{self.ports['i-1']}", "secret")
        await self.tell()
        return self.generation

    async def tell(self, grace_s: float = 2.0) -> None:
        for node, supervisor in self.supervisors.items():
            await supervisor.apply(Assignment(JOB, self.launch, self.listed.get(node, ()), self.generation, grace_s=grace_s))

    async def until(self, claim: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds * PATIENCE
        while not claim():
            assert time.monotonic() < deadline, [report for report in self.reports if not isinstance(report, StepReport)]
            await asyncio.sleep(0.02)

    @property
    def new(self) -> set[str]:
        return {process.id for listed in self.listed.values() for process in listed}

    def of(self, status: ProcessStatus) -> list[ProcessReport]:
        return [report for report in self.reports if isinstance(report, ProcessReport) and report.status is status]

    def exits(self) -> dict[str, ProcessReport]:
        return {report.process: report for report in self.of(ProcessStatus.EXITED)}

    def failures(self) -> dict[str, str]:
        return {report.process: report.traceback for report in self.reports if isinstance(report, FailedReport)}

    def pids(self) -> dict[str, int]:
        return {report.process: report.pid for report in self.of(ProcessStatus.READY) if report.pid}

    def _mint(self) -> str:
        self.minted += 1
        return f"p-{self.minted}"


def on_two_nodes(nodes: Nodes, scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        for name, supervisor in nodes.supervisors.items():
            nodes.ports[name] = await supervisor.start()
        try:
            await scenario()
        finally:
            for supervisor in nodes.supervisors.values():
                await supervisor.stop(0.5)

    asyncio.run(whole())
