"""The same recovery on accelerators: SIGKILL of one of two processes that train over NCCL, a warm spare; and what staging through pinned memory brings.

Usage: python -m benchmarks.gpu_recovery [--quick] [--kills 5] [--mib 1024] [--json FILE]

Without a GPU it says so and ends well. Real supervisors and a control plane of some lines, as `benchmarks.recovery` has them. Each rank takes the device of
its number, as far as there are so many; NCCL refuses two ranks on one device, and then that is what the run tells.
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
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import figures
from benchmarks.recovery import PHASES, first_step, is_settled, reforms_of
from tests.everstep.plane import Job, JobFailed, Plane, script_launch

SCRIPT = Path(__file__).with_name("recovery_everstep.py")
LAYERS = 4
RANKS = 2
LIMIT_S = 60.0


async def kills(count: int, width: int, folder: Path) -> list[dict[str, float]]:
    """Seconds from each kill to the end of each phase, of the slower rank."""
    plane = Plane(folder, 1, {**os.environ, "OMP_NUM_THREADS": "1", "STEP_ON_GPU": "1"})
    await plane.start()
    job = Job("gpu", script_launch(SCRIPT, str(width), str(LAYERS), "1000000"), RANKS, 1)
    chance, found = random.Random(0), []  # noqa: S311, it draws ranks
    try:
        await plane.submit(job)
        for _ in range(count):
            await plane.until(lambda: is_settled(job) and bool(job.ready), LIMIT_S)
            number, victim, killed = len(job.generations) + 1, chance.choice(job.members), time.time()
            os.kill(job.pids[victim], signal.SIGKILL)
            await plane.until(lambda number=number: len(reforms_of(job, number)) == RANKS, LIMIT_S)
            await plane.until(lambda number=number: first_step(job, number) is not None, LIMIT_S)
            reforms = reforms_of(job, number)
            ends = {phase: max(report.phases[phase] for report in reforms) for phase in PHASES[2:-1]}
            ends |= {"exit seen": job.exited_at[victim], "decided": job.published_at[number]}
            ends["first step"] = first_step(job, number) or 0.0
            found.append({phase: ends[phase] - killed for phase in PHASES})
    finally:
        await plane.stop()
    return found


def staging(mib: int, rounds: int) -> dict[str, float]:
    """GiB a second between the device and this host's memory, pageable and pinned; medians."""
    device = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    pageable, pinned = torch.empty_like(device, device="cpu"), torch.empty_like(device, device="cpu", pin_memory=True)
    ways: dict[str, Callable[[], object]] = {
        "device to pageable": lambda: pageable.copy_(device),
        "device to pinned": lambda: pinned.copy_(device, non_blocking=True),
        "pageable to device": lambda: device.copy_(pageable),
        "pinned to device": lambda: device.copy_(pinned, non_blocking=True),
    }
    found = {}
    for name, copy in ways.items():
        seconds = []
        for _ in range(rounds + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            copy()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        found[name] = mib / 1024 / statistics.median(seconds[1:])
    return found


def main() -> None:
    options = _options()
    environment = figures.environment()
    if not torch.cuda.is_available():
        print(f"skipped: this machine has no GPU that torch can use\n{figures.told(environment)}")
        figures.write(options, {"environment": environment, "skipped": "no GPU"})
        return
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    print(f"{', '.join(devices)}\n{figures.told(environment)}\n\nstaging {options.mib} MiB, GiB a second")
    found = staging(options.mib, 3 if options.quick else 10)
    for name, speed in found.items():
        print(f"  {name:<20}{speed:8.1f}")
    seconds, why_not = [], None
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        try:
            seconds = asyncio.run(kills(2 if options.quick else options.kills, options.width, Path(folder)))
        except (JobFailed, TimeoutError) as error:
            why_not = str(error)
    print(f"\nSIGKILL of one of {RANKS} ranks over NCCL, seconds: median, min-max (kills)")
    for phase in PHASES if seconds else ():
        print(f"  {phase:<14}{figures.spread([kill[phase] for kill in seconds])}")
    if why_not:
        print(f"  failed: {why_not}")
    told = {"environment": environment, "devices": devices, "staging_gib_s": found, "seconds": seconds, "failed": why_not}
    figures.write(options, told)


def _options() -> argparse.Namespace:
    parser = figures.parser(__doc__)
    for name, default in (("kills", 5), ("mib", 1024), ("width", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    main()
