"""The randomised kill test: whatever dies, and whenever, the run ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from everstep.testing import Fault, arm
from tests.everstep.plane import Job, Plane, script_launch

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
RANKS = {"ddp": 3, "manual": 3, "fsdp": 3, "hsdp": 4}
STEPS = 40
KILLS = 8
IN_STEP = ("forward", "backward", "all-reduce", "after-reduce", "vote", "before-update", "mid-update", "after-update")
IN_REFORM = ("agree", "construct", "construct", "transfer")
LIMIT_S = 60.0
A_PLANE_FOR = 10
"""Schedules: then new nodes are started, so that not everything depends on what the first ones have been through."""


@dataclass
class Notes:
    """What the ranks of one job wrote down while they trained."""

    losses: dict[int, set[float]]
    identities: dict[str, set[str]]


@dataclass(frozen=True)
class Victims:
    """Which ranks a schedule may kill so that somebody is left who has what they had. ``in_reform`` may be empty."""

    in_step: tuple[int, ...]
    in_reform: tuple[int, ...]

    @classmethod
    def of(cls, mode: str, chance: random.Random) -> Victims:
        everybody = tuple(range(RANKS[mode]))
        if mode == "hsdp":  # never both ranks that hold the same shard, 0 and 2 or 1 and 3
            chosen = (chance.choice((0, 2)), chance.choice((1, 3)))
            return cls(chosen, chosen)
        if mode == "fsdp":  # never a rank and, before its replica is made anew, the one that keeps it
            one = (chance.choice(everybody),)
            return chance.choice((cls(everybody, ()), cls(one, one)))
        return cls(everybody, everybody)


def draw(seed: int, mode: str = "ddp", steps: int = STEPS, kills: int = KILLS) -> list[Fault]:
    """Kills in steps, and kills in every second reform or so, never in two in a row: the last holder of the state has to live.

    Whoever dies at the end of a step may leave others to die at the beginning of the next one, before there was a reform: steps that follow each other
    are struck where nobody is in the reform, and where who is left has all that they had.
    """
    chance = random.Random(seed)
    victims = Victims.of(mode, chance)
    faults: list[Fault] = []
    first = 3 if mode == "fsdp" else 1  # who goes back to before the first step has no optimizer state there, and makes a new one
    if mode in {"ddp", "manual"} and chance.random() < 0.5:
        victims = replace(victims, in_reform=())
    may_follow = mode in {"ddp", "manual"} and not victims.in_reform
    for step in sorted(chance.sample(range(first, steps, 1 if may_follow else 2), kills)):
        phase = chance.choice(IN_STEP)
        delay = chance.uniform(0.0, 4.0) if phase in {"backward", "all-reduce"} and chance.random() < 0.6 else 0.0
        faults.append(Fault(chance.choice(victims.in_step), phase, step=step, after_ms=delay))
    generation = 2
    while victims.in_reform and generation < 3 * kills:
        if chance.random() < 0.4:
            delay = chance.choice((0.0, chance.uniform(0.0, 20.0)))
            faults.append(Fault(chance.choice(victims.in_reform), chance.choice(IN_REFORM), generation=generation, after_ms=delay))
            generation += 1
        generation += 1
    return faults


def read_notes(folder: Path) -> Notes:
    notes = Notes(defaultdict(set), defaultdict(set))
    for path in folder.glob("losses-*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            notes.losses[line["step"]].add(line["loss"])
    for path in folder.glob("identities-*.jsonl"):
        notes.identities[path.name].update(path.read_text().splitlines())
    return notes


def job_of(folder: Path, name: str, mode: str, faults: list[Fault], spares: int, steps: int = STEPS) -> tuple[Job, Path]:
    notes = folder / name
    notes.mkdir()
    arm(notes / "faults", faults)
    return Job(name, script_launch(SCRIPT, mode, str(notes), str(steps), str(notes / "faults")), RANKS[mode], spares), notes


async def unbroken(plane: Plane, folder: Path, mode: str) -> Job:
    """Has formed when this returns; what is broken may be trained beside it."""
    reference, _ = job_of(folder, "reference", mode, [], 0)
    await plane.submit(reference)
    await plane.until(lambda: bool(reference.generations), LIMIT_S)
    return reference


async def broken(plane: Plane, folder: Path, mode: str, seed: int) -> tuple[Job, int]:
    """Gives the job when it has ended, and how many of its faults have struck."""
    faults, spares = draw(seed, mode), 1 + seed % 2
    print(f"seed {seed}, {spares} spares, faults:", *faults, sep="\n  ", flush=True)
    job, notes = job_of(folder, f"broken-{seed}", mode, faults, spares)
    await plane.submit(job)
    await plane.finish(job, LIMIT_S)
    return job, len(list((notes / "faults.fired").iterdir()))


async def no_trace_is_left(mode: str, seeds: Sequence[int], folder: Path) -> None:
    plane = Plane(folder, 2, dict(os.environ))
    await plane.start()
    try:
        reference = await unbroken(plane, folder, mode)
        for seed in seeds:
            job, fired = await broken(plane, folder, mode, seed)
            if seed == seeds[0]:
                await plane.finish(reference, LIMIT_S)
            check(reference, job, folder, fired)
    finally:
        await plane.stop()


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "mode", ["ddp", pytest.param("manual", marks=pytest.mark.slow), "fsdp", pytest.param("hsdp", marks=pytest.mark.slow)]
)
def test_killed_ranks_leave_no_trace_in_losses_or_state(mode: str, tmp_path: Path) -> None:
    asyncio.run(no_trace_is_left(mode, [first_seed()], tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "hsdp"])
def test_fifty_schedules_of_kills_leave_no_trace_either(mode: str, tmp_path: Path) -> None:
    first = first_seed()
    for begin in range(first, first + 50, A_PLANE_FOR):
        folder = tmp_path / str(begin)
        folder.mkdir()
        asyncio.run(no_trace_is_left(mode, range(begin, begin + A_PLANE_FOR), folder))


def first_seed() -> int:
    return int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(1 << 30)))


def check(reference: Job, job: Job, folder: Path, fired: int) -> None:
    expected, seen = read_notes(folder / reference.name), read_notes(folder / job.name)
    assert seen.losses == expected.losses
    assert all(len(losses) == 1 for losses in seen.losses.values())
    assert job.losses == reference.losses
    assert {report.digest for report in job.finished.values()} == {report.digest for report in reference.finished.values()}
    assert all(len(versions) == 1 for versions in seen.identities.values()), "a survivor's objects or storage were replaced"
    assert fired >= KILLS
    assert sum(report.signal == 9 for report in job.exits) == fired
    assert all(report.exit_code == 0 for report in job.exits if report.signal is None)
