"""The peer: torchrun, which restarts every rank when one dies, and a script that loads its last checkpoint.

Every wait is bounded. By default it runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because with the shared store, which is torchrun's own default,
its restarts were seen to hang.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from everstep.embedded.children import free_port

LIMIT_S = 60.0
SETTLED_STEPS = 8


def kills(
    script: Path, arguments: list[str], folder: Path, *, ranks: int, count: int, seed: int, shares_store: bool = False
) -> list[float]:
    """Seconds from a rank's SIGKILL to the first step of the slowest rank in a new process. A restart that hangs ends the series.

    ``script`` is called with ``arguments`` and ``folder``; each rank appends a line (Unix seconds, step, pid) to ``folder/steps-RANK``.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"]
    command += ["--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(script), *arguments, str(folder)]
    environment = environment_of(shares_store=shares_store)
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
        _end([agent])
    return found


def rescales(script: Path, arguments: list[str], folder: Path, *, nodes: int, count: int) -> dict[str, list[float]]:
    """Seconds without a step while a node joins, and while it leaves: from the last step of the old world to the first of the new one.

    Agents stand for nodes, with one rank each. The last call for further nodes is cut to a second, from half a minute, by which each growth would be longer.
    """
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{nodes + 1}", "--nproc-per-node=1", "--max-restarts=100"]
    command += ["--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=rescale"]
    command += ["--rdzv-conf=last_call_timeout=1", str(script), *arguments, str(folder)]
    agents: list[subprocess.Popen[bytes]] = []
    found: dict[str, list[float]] = {"up": [], "down": []}

    def launch() -> None:
        with (folder / "log").open("a") as log:
            agents.append(
                subprocess.Popen(command, env=environment_of(), stdout=log, stderr=log, start_new_session=True, cwd=folder)
            )

    try:
        launch()
        time.sleep(1.0)  # it hosts the store
        for _ in range(nodes - 1):
            launch()
        for _ in range(count):
            _change(folder, nodes, launch, found["up"])
            _change(folder, nodes + 1, lambda: _end([agents.pop()]), found["down"])
    except TimeoutError as error:
        print(f"  torchrun: {error}")
    finally:
        _end(agents)
    return found


def _change(folder: Path, ranks: int, change: Callable[[], None], found: list[float]) -> None:
    """Once this many ranks have trained for some steps, the change is made and its gap is found."""
    if _await_steps(folder, ranks, time.time(), SETTLED_STEPS) is None:
        message = f"{ranks} ranks did not train within {LIMIT_S:.0f} s"
        raise TimeoutError(message)
    old = {line[2] for path in folder.glob("steps-*") for line in _lines(path)}
    began = time.time()
    change()
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        lines = [line for path in folder.glob("steps-*") for line in _lines(path)]
        news = [float(at) for at, _, pid in lines if pid not in old and float(at) > began]
        if news:
            found.append(min(news) - max(float(at) for at, _, pid in lines if pid in old))
            return
        time.sleep(0.05)
    message = f"no step within {LIMIT_S:.0f} s of a change of size"
    raise TimeoutError(message)


def _end(agents: list[subprocess.Popen[bytes]]) -> None:
    for agent in agents:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGTERM)
    for agent in agents:
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait(10)


def environment_of(*, shares_store: bool = False) -> dict[str, str]:
    return {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0" if shares_store else "1", "OMP_NUM_THREADS": "1"}


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
