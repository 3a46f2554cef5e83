"""How a reform grows with the number of ranks: SIGKILL of one of 2 … 64 processes of this machine, a warm spare, a tiny model.

Usage: python -m benchmarks.reform_growth [--quick] [--ranks 2,4,8,16,32,64] [--kills 3] [--json FILE]

Real supervisors, eight ranks a node, and a control plane of some lines. Told are the phases of the recovery, of the slowest rank, and what each rank is
connected to when all train: the most connections that any rank has accepted or made, by whom they lead to. All ranks share this machine's processors, so
that with twice the ranks each has half of them: times here are an upper bound of growth, and hosts of their own are better off.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import statistics
import tempfile
from collections import Counter
from pathlib import Path

import psutil

from benchmarks import figures
from benchmarks.recovery import first_step, is_settled, reforms_of
from tests.everstep.plane import Job, Plane, script_launch

SCRIPT = Path(__file__).with_name("recovery_everstep.py")
RANKS = (2, 4, 8, 16, 32, 64)
QUICK = (2, 4, 8)
PER_NODE = 8
WIDTH, LAYERS, BATCH = 16, 2, 64
LIMIT_S = 120.0
PHASES = ("decided", "agreed", "grouped", "transferred", "first step")


async def kills(ranks: int, count: int, folder: Path) -> tuple[list[dict[str, float]], dict[str, int]]:
    """Of each kill the ends of its phases, in seconds after it; and the most connections of a rank."""
    plane = Plane(folder, max(2, -(-(ranks + 1) // PER_NODE)), {**os.environ, "OMP_NUM_THREADS": "1", "STEP_SLEEP_S": "0.1"})
    await plane.start()
    arguments = (str(WIDTH), str(LAYERS), "1000000", str(BATCH))
    job = Job("growth", script_launch(SCRIPT, *arguments), ranks, 1)
    chance, found = random.Random(ranks), []  # noqa: S311, it draws ranks
    try:
        await plane.submit(job)
        for _ in range(count):
            await plane.until(lambda: is_settled(job) and bool(job.ready), LIMIT_S)
            connected = connections(plane, job)
            found.append(await _one_kill(plane, job, chance.choice(job.members)))
    finally:
        await plane.stop()
    return found, connected


async def _one_kill(plane: Plane, job: Job, victim: str) -> dict[str, float]:
    number = len(job.generations) + 1
    os.kill(job.pids[victim], signal.SIGKILL)
    await plane.until(lambda: len(reforms_of(job, number)) == job.replicas, LIMIT_S)
    await plane.until(lambda: first_step(job, number) is not None, LIMIT_S)
    decided = job.published_at[number]
    ends = {
        phase: max(report.phases[phase] for report in reforms_of(job, number)) for phase in ("agreed", "grouped", "transferred")
    }
    ends["first step"] = first_step(job, number) or 0.0
    return {"decided": decided - job.exited_at[victim], **{phase: end - decided for phase, end in ends.items()}}


def connections(plane: Plane, job: Job) -> dict[str, int]:
    """The most that any rank has: with other ranks, and with agents' rendezvous servers."""
    ports = {node.port for node in plane.nodes}
    most: Counter[str] = Counter()
    for process in job.members:
        of = [one for one in psutil.Process(job.pids[process]).net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
        to_agents = sum(one.raddr.port in ports for one in of)
        most |= Counter({"ranks": len(of) - to_agents, "rendezvous": to_agents})
    return dict(most)


def exponent(rows: list[dict[str, float]], name: str) -> float:
    """``p`` in time ~ ranks^p, by least squares over all rows."""
    xs, ys = [math.log(row["ranks"]) for row in rows], [math.log(row[name]) for row in rows]
    return statistics.linear_regression(xs, ys).slope


def main() -> None:
    options = figures.options_of_ranks(__doc__, RANKS, QUICK, kills=(3, 1))
    environment, rows = figures.environment(), []
    print(f"SIGKILL of a rank: milliseconds from the decision, medians of {options.kills} kills\n{figures.told(environment)}\n")
    print("  ranks   agreed  grouped  transferred  first step   with other ranks   with rendezvous")
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="growth-") as folder:
            found, most = asyncio.run(kills(ranks, options.kills, Path(folder)))
        medians = {phase: statistics.median(kill[phase] for kill in found) * 1e3 for phase in PHASES}
        rows.append({"ranks": ranks, **medians, **{f"connections {name}": count for name, count in most.items()}})
        print(
            f"  {ranks:5d} {medians['agreed']:8.0f} {medians['grouped']:8.0f} {medians['transferred']:12.0f} {medians['first step']:11.0f}"
            f"   {most.get('ranks', 0):16d}   {most.get('rendezvous', 0):15d}"
        )
    powers = {phase: exponent(rows, phase) for phase in PHASES[1:]} if len(rows) > 1 else {}
    for phase, power in powers.items():
        print(f"{phase} ~ ranks^{power:.2f}: {'sub-linear' if power < 1 else 'NOT sub-linear'}")
    figures.write(options, {"environment": environment, "rows": rows, "exponents": powers})


if __name__ == "__main__":
    main()
