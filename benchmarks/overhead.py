"""What the runtime costs a step in which nothing happens: the same DDP training on gloo with `everstep.resilient` and as a plain torch script.

Usage: python -m benchmarks.overhead [--quick] [--rounds 30] [--json FILE]

Two processes of each kind are alive at once and take turns of ten steps, so that both see the same machine: whoever has no turn waits and does nothing. A
round is a turn of each, in changing order; the figure is the median of the rounds' differences. Two kinds of step, each of about 100 ms: one that computes
all the time, for which two processors are too few (every thread of the runtime takes time from it), and one that mostly waits, as for an accelerator.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

from benchmarks import figures
from everstep.embedded.children import free_port
from tests.everstep.plane import Job, Plane, script_launch

SCRIPT = Path(__file__).with_name("overhead_rank.py")
RANKS = 2
BLOCK = 10
STEP_S = 0.1
MODEL_S = 0.015
"""About what the model itself takes of a step."""
GOAL = 0.01
LIMIT_S = 60.0
KINDS = ("plain", "resilient")
STEPS = ("computing", "waiting")


class Turns:
    """Lets one kind of process at a time train."""

    def __init__(self) -> None:
        self._open: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = defaultdict(list)

    async def serve(self, path: Path) -> asyncio.Server:
        return await asyncio.start_unix_server(self._heard, str(path))

    @property
    def are_all_here(self) -> bool:
        return all(len(self._open[kind]) == RANKS for kind in KINDS)

    async def take(self, kind: str) -> float:
        """Seconds a step of one block, of the slower rank."""
        for _, writer in self._open[kind]:
            writer.write(b"+")
        async with asyncio.timeout(LIMIT_S):
            told = await asyncio.gather(*(reader.readline() for reader, _ in self._open[kind]))
        return max(float(line) for line in told) / BLOCK

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = (await reader.readline()).decode().strip()
        self._open[kind].append((reader, writer))

    def close(self) -> None:
        for connections in self._open.values():
            for _, writer in connections:
                writer.close()


async def paired(folder: Path, products: int, sleep_ms: float, rounds: int) -> list[tuple[float, float]]:
    """Of each round: seconds a step, plain and resilient."""
    turns = Turns()
    server = await turns.serve(folder / "turns")
    arguments = [str(folder / "turns"), str(BLOCK), str(products), str(sleep_ms)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    plane = Plane(folder, RANKS, environment)
    await plane.start()
    with_port = environment | {"MASTER_PORT": str(free_port())}
    plain = [await _plain(rank, arguments, with_port) for rank in range(RANKS)]
    try:
        await plane.submit(Job("overhead", script_launch(SCRIPT, "resilient", *arguments), RANKS, 0))
        await plane.until(lambda: turns.are_all_here, LIMIT_S)
        found = []
        for number in range(rounds + 1):
            order = KINDS if number % 2 else KINDS[::-1]
            took = {kind: await turns.take(kind) for kind in order}
            found.append((took["plain"], took["resilient"]))
    finally:
        turns.close()
        await plane.stop()
        for process in plain:
            process.kill()
            await process.wait()
        server.close()
    return found[1:]  # the first one warms up


async def _plain(rank: int, arguments: list[str], environment: dict[str, str]) -> asyncio.subprocess.Process:
    told = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    return await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), "plain", *arguments, env=environment | told, start_new_session=True
    )


def products_in(seconds: float) -> int:
    """How many products of matrices take so long here, on one thread, with the other processor as busy."""
    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < 1.0:
        _ = matrix @ matrix
        count += 1
    return max(1, round(count * seconds))


def told(name: str, rounds: list[tuple[float, float]]) -> dict[str, float]:
    """Prints one kind of step and returns its figures: seconds, and the share of the plain step."""
    plain = statistics.median(one for one, _ in rounds)
    differences = [ours - one for one, ours in rounds]
    lower, median, upper = statistics.quantiles(differences, n=4)
    print(
        f"  {name:<10} plain step {plain * 1e3:6.1f} ms; resilient {median * 1e3:+.2f} ms "
        f"(quartiles {lower * 1e3:+.2f} to {upper * 1e3:+.2f}), {median / plain:+.2%} of it; of 100 ms {median / STEP_S:+.2%}: "
        f"goal ≤ {GOAL:.0%} {'met' if median / STEP_S <= GOAL else 'NOT met'}"
    )
    return {"plain_s": plain, "more_s": median, "lower_s": lower, "upper_s": upper, "share": median / plain}


def main() -> None:
    options = _options()
    environment = figures.environment()
    print(
        f"what the runtime costs a step, {RANKS} ranks, {options.rounds} rounds of {BLOCK} steps of each\n{figures.told(environment)}"
    )
    work = {"computing": (products_in(STEP_S - MODEL_S), 0.0), "waiting": (0, (STEP_S - MODEL_S) * 1e3)}
    found = {}
    for name in STEPS:
        with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
            found[name] = told(name, asyncio.run(paired(Path(folder), *work[name], options.rounds)))
    figures.write(options, {"environment": environment, "rounds": options.rounds, "found": found})


def _options() -> argparse.Namespace:
    parser = figures.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if options.quick:
        options.rounds = 6
    return options


if __name__ == "__main__":
    main()
