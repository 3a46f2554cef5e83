"""Randomised schedules of faults: what is drawn, what plays it, and what has to be true in the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everstep.data import DataOrder
from everstep.elastic import share_of
from everstep.evidence import HANG_AFTER_VARIABLE, Hung, HungReport
from everstep.protocol import ProcessReport, Source
from everstep.testing import Fault, arm, faults
from tests.everstep.plane import Job, JobFailed, Plane, script_launch
from tests.everstep.scripts import tokens
from tests.patience import PATIENCE

SCRIPT = Path(__file__).parent / "scripts" / "drill.py"
UNTIL = 60
PACE_S = 0.03
FIRST = 9
"""Nothing is struck before: until then a step has been saved, without which a run of which nobody is left is given up, and rightly so."""
LIMIT_S = 60.0
HANG_AFTER_S = 1.0 * PATIENCE
JOIN_PATIENCE_S = 2.0 * PATIENCE
SIZES = {"ddp": (2, 3), "manual": (2, 3), "fsdp": (2, 3), "hsdp": (2, 4)}
IN_STEP = tuple(phase for phase in faults.STEP_PHASES if phase != "save")
EVENTS = (
    "resize",
    "resize",
    "resize and kill",
    "kill",
    "kill two",
    "kill a spare",
    "kill the store's host",
    "restart the store's host",
    "freeze",
)


@dataclass(frozen=True)
class Event:
    """What is done from outside, once ``step`` is committed."""

    step: int
    what: str
    choice: float
    """Which of those that it could be done to."""


@dataclass(frozen=True)
class Schedule:
    """All of it follows from the seed."""

    seed: int
    mode: str
    ranks: int
    spares: int
    faults: tuple[Fault, ...]
    events: tuple[Event, ...]

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.mode}, {self.ranks} ranks, {self.spares} spares"
        return "\n  ".join([head, *map(str, self.faults), *map(str, self.events)])


def draw(seed: int, mode: str | None = None, *, is_short: bool = False) -> Schedule:
    """Between four and eleven strikes in 50 steps, from inside and from outside, of which any two may meet.

    ``is_short``: three or four, and none that has to be waited for until it counts as a hang.
    """
    chance = random.Random(seed)
    mode = mode or chance.choice(tuple(SIZES))
    ranks = chance.choice(SIZES[mode])
    inside = [_strike(chance) for _ in range(chance.randint(2, 5))]
    inside += [_strike_in_reform(chance) for _ in range(chance.randint(0, 2))]
    events = [
        Event(chance.randrange(FIRST, UNTIL - 8), chance.choice(EVENTS), chance.random()) for _ in range(chance.randint(2, 4))
    ]
    if is_short:
        inside = [one for one in inside if one.kind != "hang"][:2]
        events = [*[one for one in events if one.what != "freeze"][:1], Event(UNTIL // 2, "resize", 0.0)]
    spares = max(SIZES[mode]) - ranks + 1
    return Schedule(seed, mode, ranks, spares, tuple(inside), tuple(sorted(events, key=lambda one: one.step)))


def _strike(chance: random.Random) -> Fault:
    kind = chance.choices(("kill", "raise", "hang", "slow"), (6, 2, 1, 1))[0]
    rank, step = chance.randrange(3), chance.randrange(FIRST, UNTIL - 3)
    if kind == "slow":
        return Fault(rank, "forward", step=step, until=step + 4, kind=kind, seconds=0.05)
    if kind == "hang":
        return Fault(rank, chance.choice(("forward", "backward", "vote")), step=step, kind=kind, seconds=chance.choice((None, 0.5)))
    if kind == "kill" and chance.random() < 0.25:
        return Fault(None, "save", step=step, until=step + 5, after_ms=chance.uniform(0.0, 20.0))
    phase = chance.choice(IN_STEP)
    delay = chance.uniform(0.0, 4.0) if kind == "kill" and chance.random() < 0.3 else 0.0
    return Fault(rank, phase, step=step, kind=kind, after_ms=delay)


def _strike_in_reform(chance: random.Random) -> Fault:
    kind = chance.choices(("kill", "raise", "hang"), (4, 1, 1))[0]
    delay = chance.choice((0.0, chance.uniform(0.0, 20.0))) if kind == "kill" else 0.0
    seconds = 0.5 if kind == "hang" else None
    phase, generation = chance.choice(faults.REFORM_PHASES), chance.randrange(2, 6)
    return Fault(chance.randrange(3), phase, generation=generation, kind=kind, after_ms=delay, seconds=seconds)


# ------------------------------------------------------------------------------------------------ what plays it


@dataclass
class Store:
    """The environment of a node that has an object store alone."""

    address: str
    url: str

    def environment(self) -> dict[str, str]:
        return {"EVERSTEP_DURABLE_URL": self.url}


class Drill(Plane):
    """A plane that gives the place of a hung member to somebody else, and does what schedules want."""

    def __init__(self, folder: Path) -> None:
        (folder / "objects").mkdir(parents=True)
        block = random.SystemRandom().randrange(256)
        stores = [Store(f"127.79.{block}.{number}", (folder / "objects").as_uri()) for number in (1, 2)]
        super().__init__(folder, len(stores), dict(os.environ), stores)
        self.folder = folder
        self.heeded: dict[str, int] = {}

    async def play(self, schedule: Schedule) -> Job:
        name = f"s{schedule.seed}-{len(self.jobs)}"
        notes = self.folder / name
        notes.mkdir()
        arm(notes / "faults", schedule.faults)
        launch = script_launch(
            SCRIPT, schedule.mode, str(notes), str(UNTIL), str(notes / "faults"), str(PACE_S), name, seed=tokens.SEED
        )
        launch = dataclasses.replace(launch, env={**launch.env, HANG_AFTER_VARIABLE: str(HANG_AFTER_S)})
        job = Job(name, launch, schedule.ranks, schedule.spares, max_restarts=1000)
        await self.submit(job)
        chance = random.Random(schedule.seed)
        for event in schedule.events:
            await self.until(lambda event=event: max(job.losses, default=0) >= event.step or self._all_finished(job), LIMIT_S)
            if self._all_finished(job):
                break
            await self._do(job, event, SIZES[schedule.mode], chance)
        await self.finish(job, LIMIT_S)
        return job

    async def _do(self, job: Job, event: Event, sizes: Sequence[int], chance: random.Random) -> None:
        living = [name for name in job.members if name in job.placed]
        spares = [name for name in job.ready if name in job.placed]
        match event.what:
            case "resize" | "resize and kill":
                await self._rescale(job, next(size for size in sizes if size != job.replicas))
                if event.what == "resize and kill":
                    await asyncio.sleep(chance.uniform(0.0, 0.06))  # somewhere in the reform
                    self._kill(job, job.members, event.choice)
            case "kill":
                self._kill(job, living, event.choice)
            case "kill two":
                self._kill(job, living, event.choice)
                self._kill(job, living, event.choice + 0.5)
            case "kill a spare":
                self._kill(job, spares, event.choice)
            case "kill the store's host" | "restart the store's host":
                await self._strike_host(job, event.what.startswith("kill"))
            case "freeze":
                self._kill(job, living, event.choice, signal.SIGSTOP)

    async def _strike_host(self, job: Job, with_processes: bool) -> None:
        """The agent of the first member's node, which hosts the rendezvous, crashes; and with it all that runs there, or nothing."""
        node = next((job.placed[name] for name in job.members if name in job.placed), self.nodes[0])
        for name in [name for name, where in job.placed.items() if where is node and with_processes]:
            self._kill(job, [name], 0.0)
        await self.restart_supervisor(node)

    @staticmethod
    def _kill(job: Job, names: Sequence[str], choice: float, number: int = signal.SIGKILL) -> None:
        living = [name for name in names if name in job.placed and name in job.pids]
        if living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pids[living[int(choice * len(living)) % len(living)]], number)

    async def _rescale(self, job: Job, replicas: int) -> None:
        """As ``resize``, of members who all live, and when those are warm who are to join."""
        missing = replicas - len(job.members)

        def can_be() -> bool:
            return self._all_finished(job) or (len(job.ready) >= missing and all(name in job.placed for name in job.members))

        await self.until(can_be, LIMIT_S)
        if not self._all_finished(job):
            await self.resize(job, replicas)

    async def _decide(self, job: Job) -> None:
        for report in job.evidence[self.heeded.get(job.name, 0) :]:
            if isinstance(report, HungReport) and report.how is not Hung.WAITING and not job.is_over:
                await self._do_without(job, report)
        self.heeded[job.name] = len(job.evidence)
        await super()._decide(job)

    async def _do_without(self, job: Job, report: HungReport) -> None:
        name = report.process
        newest = len(job.generations)
        is_late = report.how is not Hung.FROZEN and report.generation not in {0, newest}
        is_late = (
            is_late and time.time() - job.published_at[newest] < JOIN_PATIENCE_S
        )  # whoever hung as a spare does not join either
        if name not in job.placed or name not in job.members or is_late:
            return
        if job.ready and all(member in job.placed for member in job.members):
            await self.replace(job, name, "hung")
        else:
            self._kill(job, [name], 0.0)

    def _hear_exit(self, job: Job, report: ProcessReport) -> None:
        """Who has raised, and is dismissed before the next try, ends as one that has failed: as it should."""
        if report.process not in job.placed and report.exit_code == 1 and job.raised:
            report = dataclasses.replace(report, exit_code=0)
        super()._hear_exit(job, report)


# ------------------------------------------------------------------------------------------------ what has to be true


def reference(steps: int = UNTIL) -> list[float]:
    """The losses of one process that sees each global batch whole. Nothing of the runtime takes part in it."""
    net, optimizer, scheduler = tokens.parts()
    losses = []
    for step in range(steps):
        indices = DataOrder(tokens.SIZE, tokens.SEED).indices(step * tokens.GLOBAL_BATCH, tokens.GLOBAL_BATCH)
        total, count = tokens.loss_sum(net, [tokens.sample(index) for index in indices])
        (total / count).backward()
        losses.append((total / count).item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


def check(schedule: Schedule, job: Job, notes: Path, losses: Sequence[float]) -> None:
    """No sample lost or doubled, no rank with mixed parameters, nothing read from a checkpoint while somebody held the state."""
    lines = [json.loads(line) for path in notes.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert [job.losses.get(step) for step in range(UNTIL)] == pytest.approx(list(losses), rel=1e-9)
    assert {line["step"] for line in lines} == set(range(UNTIL)), "steps that nobody has noted"
    digests: defaultdict[tuple[int, ...], set[str]] = defaultdict(set)
    attempts: defaultdict[int, set[int]] = defaultdict(set)
    for line in lines:
        assert line["samples"] == samples_of(line), line
        assert line["loss"] == pytest.approx(losses[line["step"]], rel=1e-9), line
        shards = {"hsdp": 2, "fsdp": line["world"]}.get(schedule.mode, 1)
        digests[line["step"], line["attempt"], line["rank"] % shards].add(line["digest"])
        attempts[line["step"]].add(line["attempt"])
    mixed = {key: found for key, found in digests.items() if len(found) > 1}
    assert not mixed, f"(step, attempt, shard) with parameters that differ: {mixed}"
    finished = {report.digest for report in job.finished.values()}
    shards = {"hsdp": 2, "fsdp": len(job.members)}.get(schedule.mode, 1)
    assert len(finished) <= shards, f"states of one shard differ in the end: {job.finished}"
    if schedule.mode in {"ddp", "manual"} and not any(fault.kind == "raise" for fault in schedule.faults):
        check_nothing_was_lost(job, attempts)


def samples_of(line: dict[str, Any]) -> list[int]:
    share = share_of(tokens.GLOBAL_BATCH, line["rank"], line["world"])
    return list(DataOrder(tokens.SIZE, tokens.SEED).indices(line["step"] * tokens.GLOBAL_BATCH + share.start, share.size))


def check_nothing_was_lost(job: Job, attempts: dict[int, set[int]]) -> None:
    """Who has held the state and has been a member ever since still has it: so nothing is read, and no committed step is trained again.

    The state of who stands aside ages, and is gone when a newer one begins to come in.
    """
    holders: set[str] = set()
    is_whole = True
    for generation in job.generations:
        reports = [report for report in job.reformed if report.generation == generation.number]
        members = {member.process for member in generation.members}
        if any(report.source in {Source.STORE, Source.MEMORY} for report in reports):
            is_whole = False
            survivors = members & holders
            assert not survivors, f"generation {generation.number} has read a checkpoint, and {survivors} held the state"
        holders = (holders | {report.process for report in reports}) & members
    again = {step: found for step, found in attempts.items() if len(found) > 1}
    assert not again or not is_whole, f"committed steps were trained again: {again}"


async def drilled(folder: Path, schedules: Sequence[Schedule]) -> int:
    """Plays them one after the other on the same nodes; returns how many strikes there were from inside."""
    drill, losses, fired = Drill(folder), reference(), 0
    await drill.start()
    try:
        for schedule in schedules:
            print(schedule, flush=True)
            try:
                job = await drill.play(schedule)
                check(schedule, job, folder / job.name, losses)
            except (TimeoutError, JobFailed, AssertionError) as error:
                raise AssertionError(f"{schedule}\n{type(error).__name__}: {error}\n{drill.describe()}") from error
            fired += sum("@" not in path.name for path in (folder / job.name / "faults.fired").iterdir())
            print(f"  {len(job.generations)} generations, sources {sorted({str(one.source) for one in job.reformed})}", flush=True)
    finally:
        await drill.stop()
    return fired
