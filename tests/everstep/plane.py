"""A small control plane for tests: real supervisors, one a node, whose reports it hears and for which it decides memberships."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.supervisor import Supervisor
from everstep.evidence import AnomalyReport, HungReport, StragglerReport
from everstep.protocol import (
    Assignment,
    BrokenReport,
    FailedReport,
    FinishedReport,
    Generation,
    Launch,
    Member,
    Process,
    ProcessReport,
    ProcessStatus,
    ProgressReport,
    ReformedReport,
    Report,
)
from everstep.tiers import SavedReport
from tests.patience import PATIENCE

BROKEN_PATIENCE_S = 1.5
_addresses = itertools.count(1)


@dataclass
class Node:
    """One supervisor with its own loopback address."""

    name: str
    address: str
    state_dir: Path
    supervisor: Supervisor
    port: int = 0


@dataclass
class Job:
    """What the plane knows of a job."""

    name: str
    launch: Launch
    replicas: int
    spares: int
    placed: dict[str, Node] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    ready: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    finished: dict[str, FinishedReport] = field(default_factory=dict)
    reformed: list[ReformedReport] = field(default_factory=list)
    exits: list[ProcessReport] = field(default_factory=list)
    broken: list[BrokenReport] = field(default_factory=list)
    saved: list[SavedReport] = field(default_factory=list)
    evidence: list[HungReport | StragglerReport | AnomalyReport] = field(default_factory=list)
    max_restarts: int = 0
    """How many generations user code may end by an error while its process stays."""
    raised: list[FailedReport] = field(default_factory=list)
    losses: dict[int, float | None] = field(default_factory=dict)
    commits: list[tuple[int, int, float]] = field(default_factory=list)
    """(generation, step, Unix seconds), as rank 0 told them."""
    published_at: dict[int, float] = field(default_factory=dict)
    exited_at: dict[str, float] = field(default_factory=dict)
    suspected_at: float | None = None
    is_over: bool = False


class Tier(Protocol):
    """A memory tier of ``tests.checkpoint.tiers``."""

    address: str

    def environment(self) -> dict[str, str]: ...


class JobFailed(AssertionError):
    """A process of the job reported a failure."""


class Plane:
    """Nodes and jobs. ``environment`` is what agents would inherit; with ``tiers`` the nodes have these memory tiers, each its own."""

    def __init__(self, folder: Path, nodes: int, environment: dict[str, str], tiers: Sequence[Tier] = ()) -> None:
        self._environment = environment
        self._tiers = tiers
        self._numbers = itertools.count(1)
        self.jobs: dict[str, Job] = {}
        self.nodes = [self._node(folder, number) for number in range(nodes)]
        self._news = asyncio.Event()
        self._failure: str | None = None

    async def start(self) -> None:
        for node in self.nodes:
            node.port = await node.supervisor.start()

    async def stop(self) -> None:
        await asyncio.gather(*(node.supervisor.stop(1.0) for node in self.nodes))

    async def submit(self, job: Job) -> None:
        self.jobs[job.name] = job
        for _ in range(job.replicas + job.spares):
            self._mint(job)
        await self._assign(job)

    async def until(self, claim: Callable[[], bool], limit_s: float) -> None:
        """Raises JobFailed, or TimeoutError with what was known."""
        deadline = time.monotonic() + limit_s * PATIENCE
        while not claim():
            if self._failure:
                raise JobFailed(self._failure)
            for job in self.jobs.values():
                await self._decide(job)
            self._news.clear()
            try:
                async with asyncio.timeout(0.1):
                    await self._news.wait()
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise TimeoutError(self.describe()) from None

    async def finish(self, job: Job, limit_s: float) -> None:
        """Until all ranks have finished and, dismissed, have left with exit code 0."""
        await self.until(lambda: self._all_finished(job), limit_s)
        job.is_over = True
        members = set(job.members)
        await self._assign(job)
        await self.until(lambda: members <= {report.process for report in job.exits}, 20)

    async def resize(self, job: Job, replicas: int) -> None:
        """The last ranks step aside and become spares, or spares become ranks."""
        job.spares += job.replicas - replicas
        job.replicas = replicas
        while len(job.members) > replicas:
            job.ready.append(job.members.pop())
        while len(job.members) < replicas:
            job.members.append(job.ready.pop(0))
        await self._publish(job, "resized")

    async def go_on_without(self, job: Job, process: str) -> None:
        """A member that has exited is not made up for; ``replicas`` is that of those who are left."""
        job.members.remove(process)
        await self._publish(job, "shrunk")

    async def replace(self, job: Job, process: str, cause: str = "replaced") -> None:
        """A member that lives, but is of no use any more, gives its place to a spare, and is ended."""
        job.members[job.members.index(process)] = job.ready.pop(0)
        del job.placed[process]
        await self._publish(job, cause)

    def describe(self) -> str:
        return "\n".join(
            f"{job.name}: generation {len(job.generations)} members {job.members} ready {job.ready} finished {sorted(job.finished)} "
            f"last step {max(job.losses, default=None)} exits {[(e.process, e.exit_code, e.signal) for e in job.exits]} "
            f"broken {[(b.generation, b.process, b.message) for b in job.broken[-4:]]} reformed {[(r.generation, r.rank) for r in job.reformed[-4:]]}"
            for job in self.jobs.values()
        )

    async def restart_supervisor(self, node: Node) -> None:
        """As after a crash of the agent: the old one lets go, a new one adopts."""
        await node.supervisor.detach()
        await self.start_supervisor(node)

    async def start_supervisor(self, node: Node) -> None:
        """A new one, after the one before has been detached."""
        node.supervisor = self._supervisor(node.name, node.address, node.state_dir)
        node.port = await node.supervisor.start()
        for job in self.jobs.values():
            await node.supervisor.apply(self._assignment(job, node))

    # ------------------------------------------------------------ inside

    def _node(self, folder: Path, number: int) -> Node:
        address = f"127.78.{(next(_addresses) >> 8) & 255}.{next(_addresses) & 255}"
        if self._tiers:
            address = self._tiers[number].address
        state_dir = folder / f"node{number}"
        state_dir.mkdir(parents=True)
        return Node(f"n{number}", address, state_dir, self._supervisor(f"n{number}", address, state_dir))

    def _supervisor(self, name: str, address: str, state_dir: Path) -> Supervisor:
        tier = next((tier for tier in self._tiers if tier.address == address), None)

        async def variables(job: str, _namespace: str | None) -> dict[str, str]:
            return {**tier.environment(), "EVERSTEP_JOB_ID": job, "EVERSTEP_NODE_ID": name} if tier else {}

        return Supervisor(
            node_id=name,
            address=address,
            state_dir=state_dir,
            report=self._hear,
            environment=self._environment,
            variables=variables if tier else None,
            prefetch_dir=state_dir / "batches",
        )

    def _mint(self, job: Job) -> None:
        name = f"p-{next(self._numbers)}"
        load = {node.name: 0 for node in self.nodes}
        for placed in job.placed.values():
            load[placed.name] += 1
        job.placed[name] = min(self.nodes, key=lambda node: load[node.name])

    def _assignment(self, job: Job, node: Node) -> Assignment:
        mine = [name for name, placed in job.placed.items() if placed is node]
        listed = () if job.is_over else tuple(Process(name, local_rank=number) for number, name in enumerate(mine))
        return Assignment(job.name, job.launch, listed, job.generations[-1] if job.generations else None, grace_s=4.0 * PATIENCE)

    async def _assign(self, job: Job) -> None:
        for node in self.nodes:
            await node.supervisor.apply(self._assignment(job, node))

    def _hear(self, report: Report) -> None:
        job = self.jobs.get(getattr(report, "job", ""))
        if job is not None:  # else of checkpoints, which name their namespace
            if isinstance(report, ProcessReport):
                self._hear_process(job, report)
            else:
                self._hear_rank(job, report)
            self._news.set()

    def _hear_process(self, job: Job, report: ProcessReport) -> None:
        match report.status:
            case ProcessStatus.EXITED:
                self._hear_exit(job, report)
            case ProcessStatus.READY:
                # A new supervisor is told it once more, and of processes, too, that were replaced meanwhile.
                if report.process not in (*job.ready, *job.members) and report.process in job.placed:
                    job.ready.append(report.process)
            case _:
                job.pids[report.process] = report.pid or 0

    def _hear_rank(self, job: Job, report: Report) -> None:
        match report:
            case FinishedReport():
                job.finished[report.process] = report
            case ReformedReport():
                job.reformed.append(report)
            case SavedReport():
                job.saved.append(report)
            case BrokenReport():
                self._hear_broken(job, report)
            case ProgressReport():
                job.losses.update((step.step, step.loss) for step in report.steps)
                job.commits += [(report.generation, step.step, step.at) for step in report.steps]
            case FailedReport():
                self._hear_failed(job, report)
            case HungReport() | StragglerReport() | AnomalyReport():
                job.evidence.append(report)

    def _hear_failed(self, job: Job, report: FailedReport) -> None:
        if report.stays and len({one.generation for one in [*job.raised, report]}) <= job.max_restarts:
            job.raised.append(report)
        else:
            self._failure = f"{report.process} failed in generation {report.generation}:\n{report.traceback}"

    def _hear_broken(self, job: Job, report: BrokenReport) -> None:
        job.broken.append(report)
        if report.generation == len(job.generations):
            job.suspected_at = time.monotonic()

    def _hear_exit(self, job: Job, report: ProcessReport) -> None:
        is_ours_to_end = report.process not in job.placed
        if not job.is_over:
            job.placed.pop(report.process, None)
        job.exits.append(report)
        job.exited_at[report.process] = time.time()
        if report.process in job.ready:
            job.ready.remove(report.process)
        is_ours_to_end |= job.is_over and report.process not in job.members  # or a spare that is late
        if report.exit_code not in {0, None} or (
            report.exit_code is None and report.signal not in {9, None} and not is_ours_to_end
        ):
            self._failure = f"{report.process} exited with {report.exit_code}, signal {report.signal}:\n{report.tail}"

    async def _decide(self, job: Job) -> None:
        """Level-triggered: mint spares that are missing, replace members that have exited, retry after an error without a death."""
        if job.is_over:
            return
        missing = job.replicas + job.spares - len(job.placed)
        for _ in range(missing):
            self._mint(job)
        if missing > 0:
            await self._assign(job)
        if not job.members:
            if len(job.ready) >= job.replicas:
                job.members, job.ready = job.ready[: job.replicas], job.ready[job.replicas :]
                await self._publish(job, "start")
            return
        dead = [rank for rank, name in enumerate(job.members) if name not in job.placed]
        if dead and len(job.ready) >= len(dead):
            for rank in dead:
                job.members[rank] = job.ready.pop(0)
            await self._publish(job, "replaced")
        elif not dead and any(report.generation == len(job.generations) for report in job.raised):
            await self._publish(job, "user code failed")
        elif not dead and job.suspected_at is not None and time.monotonic() - job.suspected_at > BROKEN_PATIENCE_S:
            await self._publish(job, "retried")

    async def _publish(self, job: Job, cause: str) -> None:
        job.suspected_at = None
        job.finished = {}
        members = tuple(
            Member(rank, name, job.placed[name].name, job.placed[name].address) for rank, name in enumerate(job.members)
        )
        first = job.placed[job.members[0]]
        rendezvous = f"{first.address}:{first.port}"
        job.generations.append(Generation(job.name, len(job.generations) + 1, cause, members, rendezvous, f"secret of {job.name}"))
        job.published_at[len(job.generations)] = time.time()
        await self._assign(job)

    def _all_finished(self, job: Job) -> bool:
        current = [job.finished.get(name) for name in job.members]
        return bool(current) and all(report and report.generation == len(job.generations) for report in current)


def script_launch(script: Path, *arguments: str, seed: int = 3) -> Launch:
    return Launch((sys.executable, str(script), *arguments), str(script.parent), seed=seed)
