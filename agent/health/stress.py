"""InstanceStress: processors, memory and disk burn for a set time; what they compute and hold is compared, and how fast is measured.

``python -P -m agent.health.stress`` is the child that burns, so that the agent goes on beating; it prints one JSON object. Every processor
hashes the same block again and again: a digest that differs is a processor that errs.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from agent.health import findings
from agent.health.limits import Limits
from everstep.examination import Finding

KIND = "InstanceStress"
_MIB = 1024 * 1024
_BLOCK = bytes(range(256)) * 4096
_ERRORS = {
    "cpu": "a processor computed a wrong digest",
    "memory": "memory did not hold what was written",
    "disk": "the disk did not return what was written",
}


def judge(measured: dict[str, float | None], limits: Limits) -> list[Finding]:
    """``measured`` is what the child printed: MiB/s by part, None for a part that erred."""
    floors = {
        "cpu": (limits.cpu_mib_per_s, "hashing on each processor"),
        "memory": (limits.memory_mib_per_s, "memory"),
        "disk": (limits.disk_mib_per_s, "disk"),
    }
    found = []
    for part, (floor, what) in floors.items():
        rate = measured.get(part)
        found.append(findings.failed(KIND, _ERRORS[part]) if rate is None else findings.at_least(KIND, what, rate, floor, "MiB/s"))
    return found


def burn(limits: Limits, processors: int, folder: Path) -> dict[str, float | None]:
    """MiB/s of each part; None for one that returned something else than it was given."""
    return {
        "cpu": _cpu(limits.stress_s, processors),
        "memory": _memory(limits.stress_s, limits.memory_mib),
        "disk": _disk(limits.stress_s, limits.disk_mib, folder),
    }


def _cpu(seconds: float, processors: int) -> float | None:
    """Of the slowest processor."""
    with multiprocessing.get_context("fork").Pool(processors) as pool:
        rates = pool.map(_hash, [seconds] * processors)
    return None if any(rate is None for rate in rates) else min(rate for rate in rates if rate is not None)


def _hash(seconds: float) -> float | None:
    wanted = hashlib.sha256(_BLOCK).digest()
    began, rounds = time.process_time(), 0
    end = time.monotonic() + seconds
    while rounds == 0 or time.monotonic() < end:
        if hashlib.sha256(_BLOCK).digest() != wanted:
            return None
        rounds += 1
    # Of the time that this process was given: others may use the processor meanwhile.
    return rounds * len(_BLOCK) / _MIB / max(time.process_time() - began, 1e-9)


def _memory(seconds: float, mib: float) -> float | None:
    size, moved = max(1, int(mib)) * _MIB, 0
    pattern = _BLOCK[:_MIB]
    held = bytearray(size)
    began, end = time.process_time(), time.monotonic() + seconds
    while moved == 0 or time.monotonic() < end:
        for offset in range(0, size, _MIB):
            held[offset : offset + _MIB] = pattern
        if any(held[offset : offset + _MIB] != pattern for offset in range(0, size, _MIB)):
            return None
        moved += 2 * size
        pattern = pattern[1:] + pattern[:1]
    return moved / _MIB / max(time.process_time() - began, 1e-9)


def _disk(seconds: float, mib: float, folder: Path) -> float | None:
    path, block = folder / ".stress", _BLOCK[:_MIB]
    count, moved, spent = max(1, int(mib)), 0, 0.0
    end = time.monotonic() + seconds
    try:
        while moved == 0 or time.monotonic() < end:
            began = time.monotonic()
            with path.open("wb") as file:
                for _ in range(count):
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            with path.open("rb") as file:
                if any(file.read(_MIB) != block for _ in range(count)):
                    return None
            moved += 2 * count * _MIB
            spent += time.monotonic() - began
    finally:
        path.unlink(missing_ok=True)
    return moved / _MIB / max(spent, 1e-9)


def main() -> int:
    """``python -P -m agent.health.stress PROCESSORS FOLDER LIMITS``; the limits as JSON."""
    os.nice(10)
    _, processors, folder, limits = sys.argv
    sys.stdout.write(json.dumps(burn(Limits(**json.loads(limits)), int(processors), Path(folder))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
