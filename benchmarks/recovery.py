"""Kill → first step of everybody: Everstep's bare mechanism (real supervisors, no control plane) beside torchrun's restart.

Usage: python -m benchmarks.recovery [--kills 7] [--ranks 3] [--width 256] [--layers 4] [--no-torchrun] [--json FILE]

Every wait is bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import torchrun
from benchmarks.torchrun import LIMIT_S, SETTLED_STEPS
from everstep.protocol import ReformedReport
from tests.everstep.plane import Job, Plane, script_launch

HERE = Path(__file__).parent
PHASES = ("exit seen", "decided", "released", "agreed", "grouped", "transferred", "first step")


async def everstep_kills(options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Seconds from the kill to the end of each phase, the slowest rank counting."""
    plane = Plane(folder, min(options.ranks, 3), dict(os.environ))
    await plane.start()
    launch = script_launch(HERE / "recovery_everstep.py", str(options.width), str(options.layers), "1000000")
    job = Job("bench", launch, options.ranks, 1)
    chance, found = random.Random(options.seed), []  # noqa: S311, it draws moments
    try:
        await plane.submit(job)
        for _ in range(options.kills):
            await plane.until(lambda: _is_settled(job), LIMIT_S)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            found.append(await _one_kill(plane, job, chance.choice(job.members)))
    finally:
        await plane.stop()
    return found


async def _one_kill(plane: Plane, job: Job, victim: str) -> dict[str, float]:
    number = len(job.generations) + 1
    killed = time.time()
    os.kill(job.pids[victim], signal.SIGKILL)
    await plane.until(lambda: len(_reforms(job, number)) == job.replicas, LIMIT_S)
    await plane.until(lambda: _first_step(job, number) is not None, LIMIT_S)
    reforms = _reforms(job, number)
    ends = {
        "exit seen": job.exited_at[victim],
        "decided": job.published_at[number],
        **{phase: max(report.phases[phase] for report in reforms) for phase in ("released", "agreed", "grouped", "transferred")},
        "first step": _first_step(job, number) or 0.0,
    }
    return {
        **{phase: end - killed for phase, end in ends.items()},
        "bytes": float(sum(report.bytes_moved for report in reforms)),
        "steps lost": float(len(set(range(max(job.losses))) - set(job.losses))),
    }


def _reforms(job: Job, number: int) -> list[ReformedReport]:
    return [report for report in job.reformed if report.generation == number]


def _first_step(job: Job, number: int) -> float | None:
    """Of everybody: a commit takes all votes. Steps from before the reform are told again in the new generation, and don't count."""
    reformed = max(report.phases["transferred"] for report in _reforms(job, number))
    return min((at for generation, _, at in job.commits if generation == number and at > reformed), default=None)


def _is_settled(job: Job) -> bool:
    current = len(job.generations)
    steps = {step for generation, step, at in job.commits if generation == current and at > job.published_at.get(current, 0.0)}
    return len(steps) >= SETTLED_STEPS and bool(job.ready)


def _torchrun_kills(options: argparse.Namespace, folder: Path) -> list[float]:
    arguments = [str(options.width), str(options.layers), "1000000"]
    script = HERE / "recovery_torchrun.py"
    return torchrun.kills(script, arguments, folder, ranks=options.ranks, count=options.kills, seed=options.seed)


def show(everstep: list[dict[str, float]], restarts: list[float], options: argparse.Namespace) -> None:
    print(
        f"\nkill -> first step, seconds; {options.ranks} ranks + 1 spare, {options.layers} x {options.width}^2, {len(everstep)} kills"
    )
    print(f"{'end of phase':<14}{'median':>9}{'min':>9}{'max':>9}")
    for phase in PHASES:
        values = [kill[phase] for kill in everstep]
        print(f"{phase:<14}{statistics.median(values):>9.3f}{min(values):>9.3f}{max(values):>9.3f}")
    print(
        f"bytes moved a kill: {statistics.median(kill['bytes'] for kill in everstep):,.0f}; steps lost: {sum(kill['steps lost'] for kill in everstep):.0f}"
    )
    if restarts:
        print(
            f"{'torchrun':<14}{statistics.median(restarts):>9.3f}{min(restarts):>9.3f}{max(restarts):>9.3f}  ({len(restarts)} restarts)"
        )
        ratio = statistics.median(restarts) / statistics.median(kill["first step"] for kill in everstep)
        print(f"torchrun takes {ratio:.1f} times as long, and trains up to 9 steps again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 7), ("ranks", 3), ("width", 256), ("layers", 4), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--no-torchrun", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        for part in ("everstep", "torchrun"):
            (folder / part).mkdir()
        everstep = asyncio.run(everstep_kills(options, folder / "everstep"))
        restarts = [] if options.no_torchrun else _torchrun_kills(options, folder / "torchrun")
    show(everstep, restarts, options)
    if options.json:
        options.json.write_text(
            json.dumps({"everstep": everstep, "torchrun": restarts, "options": {**vars(options), "json": None}})
        )


if __name__ == "__main__":
    main()
