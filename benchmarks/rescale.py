"""How long nobody trains while the world grows by one node, and while it shrinks by one: Everstep beside torchrun, the same model.

Usage: python -m benchmarks.rescale [--quick] [--rounds 3] [--ranks 2] [--width 1024] [--layers 4] [--parts bare,whole,torchrun] [--json FILE]

The figure is the gap in the row of steps: from the last step of the old world to the first of the new one. What comes before, while training goes on
(a process warms up, an agent starts), costs nobody anything and is not in it. ``bare``: real supervisors with a control plane of some lines;
``whole``: ResizeJob on an embedded stack; ``torchrun``: agents as nodes, `--nnodes=1:N`, with a last call of one second; it redoes up to nine steps.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import figures, stack, torchrun
from benchmarks.torchrun import LIMIT_S, SETTLED_STEPS
from everstep.demo.ledger import instant
from tests.everstep.plane import Job, Plane, script_launch

HERE = Path(__file__).parent
SCRIPT = HERE / "recovery_everstep.py"
PARTS = ("bare", "whole", "torchrun")
QUICK = ("bare", "whole")
GOALS = {"up": 10.0, "down": 50.0}
"""How many times as long torchrun takes."""
Gaps = dict[str, list[float]]


async def bare(options: argparse.Namespace, folder: Path) -> Gaps:
    plane = Plane(folder, options.ranks + 1, {**os.environ, "OMP_NUM_THREADS": "1"})
    await plane.start()
    job = Job("rescale", script_launch(SCRIPT, str(options.width), str(options.layers), "1000000"), options.ranks, 1)
    found: Gaps = {"up": [], "down": []}
    try:
        await plane.submit(job)
        for _ in range(options.rounds):
            for way, size in (("up", options.ranks + 1), ("down", options.ranks)):
                await plane.until(lambda: bool(job.members), LIMIT_S)
                await plane.until(lambda size=size: len(_own(job)) >= SETTLED_STEPS and _has_room(job, size), LIMIT_S)
                await plane.resize(job, size)
                await plane.until(lambda: bool(_own(job)), LIMIT_S)
                first = _own(job)[0]
                found[way].append(first - max(at for _, _, at in job.commits if at < first))
    finally:
        await plane.stop()
    return found


def _has_room(job: Job, size: int) -> bool:
    return size <= job.replicas or bool(job.ready)


def _own(job: Job) -> list[float]:
    """When the newest generation committed steps. The last ones of the one before are told again in its name: not those."""
    number = len(job.generations)
    ends = [report.phases["transferred"] for report in job.reformed if report.generation == number]
    if not ends or len(ends) < job.generations[-1].world_size:
        return []
    return sorted({at for generation, _, at in job.commits if generation == number and at > max(ends)})


def whole(options: argparse.Namespace) -> Gaps:
    arguments = [str(options.width), str(options.layers), "1000000"]
    elastic = {"min": 1, "max": options.ranks + 1, "step": 1}
    found: Gaps = {"up": [], "down": []}
    with stack.running(options.ranks + 1) as running:
        job = running.submit("rescale", SCRIPT, arguments, replicas=options.ranks, elastic=elastic)
        for _ in range(options.rounds):
            for way, old, new in (("up", options.ranks, options.ranks + 1), ("down", options.ranks + 1, options.ranks)):
                before = job.await_training(old)
                job.rest.post(f"/v1/jobs/{job.job_id}/resize", {"replicas": new})
                after = job.first_step_after(before["generation"], new)
                first = instant(after["first_step_at"]) or 0.0
                found[way].append(first - job.last_step_before(first))
        job.stop()
    return found


def measured(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Gaps]]:
    for part in options.parts:
        here = folder / part
        here.mkdir()
        match part:
            case "bare":
                yield part, asyncio.run(bare(options, here))
            case "whole":
                yield part, whole(options)
            case _:
                arguments = [str(options.width), str(options.layers), "1000000"]
                script = HERE / "recovery_torchrun.py"
                yield part, torchrun.rescales(script, arguments, here, nodes=options.ranks, count=options.rounds)


def main() -> None:
    options = _options()
    environment, found = figures.environment(), {}
    what = f"{options.ranks} -> {options.ranks + 1} -> {options.ranks} ranks, {options.layers} x {options.width}^2, DDP and Adam"
    print(
        f"seconds without a step while the world changes its size: median, min-max (changes); {what}\n{figures.told(environment)}\n"
    )
    with tempfile.TemporaryDirectory(prefix="rescale-") as folder:
        for name, gaps in measured(options, Path(folder)):
            found[name] = gaps
            for way, seconds in gaps.items():
                print(f"  {name:<10} {way:<6}{figures.spread(seconds)}")
    for name in ("bare", "whole"):
        for way, goal in GOALS.items():
            if name in found and "torchrun" in found:
                told = figures.times_faster(found[name][way], found["torchrun"][way], goal)
                print(f"torchrun {way} beside {name}: {told}")
    medians = {name: {way: statistics.median(of) for way, of in gaps.items() if of} for name, gaps in found.items()}
    figures.write(options, {"environment": environment, "options": vars(options), "seconds": found, "medians": medians})


def _options() -> argparse.Namespace:
    options = figures.options_of(__doc__, {"rounds": 3, "ranks": 2, "width": 1024, "layers": 4}, PARTS, QUICK)
    if options.quick:
        options.rounds = 1
    return options


if __name__ == "__main__":
    main()
