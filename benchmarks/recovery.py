"""SIGKILL of a rank → the next step of everybody: Everstep, torchrun and torchft, the same model on as many ranks, one after the other.

Usage: python -m benchmarks.recovery [--quick] [--kills 5] [--ranks 3] [--width 1024] [--layers 4] [--parts bare,whole,torchrun,shared,torchft,stock] [--json FILE]

- ``bare``: real supervisors and a control plane of some lines, so that what is seen is the runtime's own part; a warm spare, and none (it shrinks);
- ``whole``: the embedded stack with one local node a rank: agents, API, database and workers are in the loop;
- ``torchrun``, which restarts every rank, with its store apart, and ``shared`` with the store shared as is its default, which was seen to hang;
- ``torchft`` with a heartbeat of one second and its hook for DDP repaired, and ``stock`` as it is published.

Every wait is bounded. A peer's restart trains up to nine steps again; Everstep and torchft none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import figures, stack, torchrun
from benchmarks.peers import torchft_kills
from benchmarks.torchrun import LIMIT_S, SETTLED_STEPS
from everstep.demo.ledger import instant
from everstep.protocol import ReformedReport
from tests.everstep.plane import Job, Plane, script_launch

HERE = Path(__file__).parent
SCRIPT = HERE / "recovery_everstep.py"
PHASES = ("exit seen", "decided", "released", "agreed", "grouped", "transferred", "first step")
PARTS = ("bare", "whole", "torchrun", "shared", "torchft", "stock")
QUICK = ("bare", "whole")
GOALS = {"whole, shrinks": 0.5, "whole, spare": 0.7}
TIMES_TORCHRUN, TIMES_TORCHFT = 10.0, 4.0


# ---------------------------------------------------------------------------------------------- the bare mechanism


async def bare_kills(options: argparse.Namespace, folder: Path, *, spares: int) -> list[dict[str, float]]:
    """Seconds from the kill to the end of each phase, the slowest rank counting. Without a spare the world shrinks, and grows again before the next."""
    plane = Plane(folder, min(options.ranks, 3), {**os.environ, "OMP_NUM_THREADS": "1"})
    await plane.start()
    job = Job("bench", script_launch(SCRIPT, str(options.width), str(options.layers), "1000000"), options.ranks, spares)
    chance, found = random.Random(options.seed), []  # noqa: S311, it draws moments
    try:
        await plane.submit(job)
        for _ in range(options.kills):
            await _grow(plane, job, options.ranks)
            await plane.until(lambda: is_settled(job) and len(job.ready) >= spares, LIMIT_S)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            found.append(await _one_kill(plane, job, chance.choice(job.members), is_shrinking=spares == 0))
    finally:
        await plane.stop()
    return found


async def _grow(plane: Plane, job: Job, ranks: int) -> None:
    if job.replicas < ranks:
        job.spares += ranks - job.replicas
        await plane.until(lambda: len(job.ready) >= ranks - job.replicas, LIMIT_S)
        await plane.resize(job, ranks)


async def _one_kill(plane: Plane, job: Job, victim: str, *, is_shrinking: bool) -> dict[str, float]:
    number = len(job.generations) + 1
    job.replicas -= is_shrinking
    killed = time.time()
    os.kill(job.pids[victim], signal.SIGKILL)
    if is_shrinking:
        await plane.until(lambda: victim in job.exited_at, LIMIT_S)
        await plane.go_on_without(job, victim)
    await plane.until(lambda: len(reforms_of(job, number)) == job.replicas, LIMIT_S)
    await plane.until(lambda: first_step(job, number) is not None, LIMIT_S)
    reforms = reforms_of(job, number)
    ends = {
        "exit seen": job.exited_at[victim],
        "decided": job.published_at[number],
        **{phase: max(report.phases[phase] for report in reforms) for phase in ("released", "agreed", "grouped", "transferred")},
        "first step": first_step(job, number) or 0.0,
    }
    return {
        **{phase: end - killed for phase, end in ends.items()},
        "bytes": float(sum(report.bytes_moved for report in reforms)),
        "steps lost": float(len(set(range(max(job.losses))) - set(job.losses))),
    }


def reforms_of(job: Job, number: int) -> list[ReformedReport]:
    return [report for report in job.reformed if report.generation == number]


def first_step(job: Job, number: int) -> float | None:
    """Of everybody: a commit takes all votes. Steps from before the reform are told again in the new generation, and don't count."""
    reformed = max(report.phases["transferred"] for report in reforms_of(job, number))
    return min((at for generation, _, at in job.commits if generation == number and at > reformed), default=None)


def is_settled(job: Job) -> bool:
    current = len(job.generations)
    steps = {step for generation, step, at in job.commits if generation == current and at > job.published_at.get(current, 0.0)}
    return len(steps) >= SETTLED_STEPS and bool(job.members)


# ---------------------------------------------------------------------------------------------- the whole system


def whole_kills(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """As ``bare_kills``, of both kinds, with everything in the loop. The figures are those that a client is told."""
    arguments = [str(options.width), str(options.layers), "1000000"]
    chance = random.Random(options.seed)  # noqa: S311, it draws moments
    elastic = {"min": 1, "max": options.ranks, "step": 1, "faulty_scale_down_timeout": "0s"}
    with stack.running(options.ranks + 1) as running:
        job = running.submit("spare", SCRIPT, arguments, replicas=options.ranks, spares=1)
        spare = [_whole_kill(job, options.ranks, 1, chance) for _ in range(options.kills)]
        job.stop()
        job = running.submit("shrinks", SCRIPT, arguments, replicas=options.ranks, elastic=elastic)
        shrinks = []
        for _ in range(options.kills):
            shrinks.append(_whole_kill(job, options.ranks, 0, chance))
            for size in (options.ranks - 1, options.ranks):
                job.rest.post(f"/v1/jobs/{job.job_id}/resize", {"replicas": size})
        job.stop()
    return {"whole, spare": spare, "whole, shrinks": shrinks}


def _whole_kill(job: stack.Job, ranks: int, spares: int, chance: random.Random) -> dict[str, float]:
    before = job.await_training(ranks, spares=spares)
    time.sleep(chance.uniform(0.0, 0.3))
    victim = chance.choice([one for one in before["processes"] if one["rank"] is not None and one["status"] == "Ready"])
    killed = time.time()
    os.kill(victim["pid"], signal.SIGKILL)
    after = job.first_step_after(before["generation"], ranks if spares else ranks - 1)
    phases: dict[str, float] = {}
    for member in after["members"]:
        for name, at in member["phases"].items():
            phases[name] = max(at, phases.get(name, at))
    ends = {"decided": instant(after["decided_at"]), **phases, "first step": instant(after["first_step_at"])}
    told = {name: at - killed for name, at in ends.items() if at is not None and name in PHASES}
    return {**told, "steps lost": float(after["steps_lost"])}


# ---------------------------------------------------------------------------------------------- telling it


def measured(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, what was found), part by part: phases of each kill for ours, seconds to the step of all for peers."""
    arguments = [str(options.width), str(options.layers), "1000000"]
    how = {"ranks": options.ranks, "count": options.kills, "seed": options.seed}
    for part in options.parts:
        here = folder / part
        here.mkdir()
        match part:
            case "bare":
                yield "bare, spare", asyncio.run(bare_kills(options, here / "spare", spares=1))
                yield "bare, shrinks", asyncio.run(bare_kills(options, here / "shrinks", spares=0))
            case "whole":
                yield from whole_kills(options).items()
            case "torchrun" | "shared":
                is_shared = part == "shared"
                found = torchrun.kills(HERE / "recovery_torchrun.py", arguments, here, shares_store=is_shared, **how)
                yield f"torchrun{', store shared' if is_shared else ''}", found
            case _:
                is_stock = part == "stock"
                replicas = {"groups": options.ranks, "count": options.kills, "seed": options.seed, "is_stock": is_stock}
                yield f"torchft{', stock' if is_stock else ''}", torchft_kills.kills(arguments, here, **replicas)


def show(name: str, found: Any, kills: int) -> None:
    print(f"\n{name}")
    match found:
        case torchft_kills.Found():
            print(f"  {'survivors':<14}{figures.spread(found.survivors)}\n  {'all groups':<14}{figures.spread(found.everybody)}")
            if found.why_not:
                print(f"  failed: {found.why_not}")
        case [dict(), *_]:
            for phase in PHASES:
                if all(phase in kill for kill in found):
                    print(f"  {phase:<14}{figures.spread([kill[phase] for kill in found])}")
            print(f"  steps lost: {sum(kill['steps lost'] for kill in found):.0f}")
        case _:
            print(f"  {'first step':<14}{figures.spread(found)}")
            if len(found) < kills:
                print(f"  failed: restart {len(found) + 1} did not end within {LIMIT_S:.0f} s")


def conclude(found: dict[str, Any]) -> None:
    """Goals and ratios. What goes on without a substitute is compared with torchft's survivors, what has one with all of its groups together."""
    print()
    ours = {name: [kill["first step"] for kill in kills] for name, kills in found.items() if name.startswith(("bare", "whole"))}
    for name, goal in GOALS.items():
        if name in ours:
            print(f"{name}: {figures.at_most(statistics.median(ours[name]), goal)}")
    for name, own in ours.items():
        if (theirs := found.get("torchrun")) is not None:
            print(f"torchrun beside {name}: {figures.times_faster(own, theirs, TIMES_TORCHRUN)}")
        if (peer := found.get("torchft")) is not None:
            who, seconds = ("survivors", peer.survivors) if name.endswith("shrinks") else ("groups all together", peer.everybody)
            print(f"torchft's {who} beside {name}: {figures.times_faster(own, seconds, TIMES_TORCHFT)}")


def main() -> None:
    options = _options()
    environment, found = figures.environment(), {}
    what = f"{options.ranks} ranks, {options.layers} x {options.width}^2, DDP and Adam"
    print(f"SIGKILL of a rank -> the next step of all, seconds: median, min-max (kills); {what}\n{figures.told(environment)}")
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        for name, one in measured(options, Path(folder)):
            found[name] = one
            show(name, one, options.kills)
    conclude(found)
    plain = {name: vars(one) if isinstance(one, torchft_kills.Found) else one for name, one in found.items()}
    figures.write(options, {"environment": environment, "options": vars(options), "seconds": plain})


def _options() -> argparse.Namespace:
    options = figures.options_of(__doc__, {"kills": 5, "ranks": 3, "width": 1024, "layers": 4, "seed": 0}, PARTS, QUICK)
    if options.quick:
        options.kills = 2
    return options


if __name__ == "__main__":
    main()
