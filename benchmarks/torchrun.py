"""The peer: torchrun, which restarts every rank when one dies, and a script that loads its last checkpoint.

Every wait is bounded. It runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because with the shared store its restarts were seen to hang.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 60.0
SETTLED_STEPS = 8


def kills(script: Path, arguments: list[str], folder: Path, *, ranks: int, count: int, seed: int) -> list[float]:
    """Seconds from a rank's SIGKILL to the first step of the slowest rank in a new process. A restart that hangs ends the series.

    ``script`` is called with ``arguments`` and ``folder``; each rank appends a line (Unix seconds, step, pid) to ``folder/steps-RANK``.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"]
    command += ["--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(script), *arguments, str(folder)]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    chance, found = random.Random(seed), []  # noqa: S311, it draws moments
    with (folder / "log").open("w") as log:
        agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(count):
            if _await_steps(folder, ranks, time.time(), SETTLED_STEPS) is None:
                break
            time.sleep(chance.uniform(0.0, 0.3))
            victim = _last(folder / f"steps-{chance.randrange(ranks)}")
            killed = time.time()
            os.kill(int(victim[2]), signal.SIGKILL)
            resumed = _await_new_processes(folder, ranks, killed)
            if resumed is None:
                break
            found.append(resumed - killed)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait(10)
    return found


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


def _last(path: Path) -> list[str]:
    return _lines(path)[-1]


def _await_steps(folder: Path, ranks: int, since: float, count: int) -> bool | None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        seen = [sum(float(line[0]) > since for line in _lines(folder / f"steps-{rank}")) for rank in range(ranks)]
        if min(seen) >= count:
            return True
        time.sleep(0.1)
    return None


def _await_new_processes(folder: Path, ranks: int, killed: float) -> float | None:
    old = {_last(folder / f"steps-{rank}")[2] for rank in range(ranks)}
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        firsts = [
            next((float(at) for at, _, pid in _lines(folder / f"steps-{rank}") if pid not in old and float(at) > killed), None)
            for rank in range(ranks)
        ]
        if all(firsts):
            return max(first for first in firsts if first)
        time.sleep(0.05)
    return None
