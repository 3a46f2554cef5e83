"""The peer torchft: a lighthouse, one process per replica group, one of which is killed and at once launched again. Every wait is bounded."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from everstep.embedded.children import free_port

HEARTBEAT_MS = 1000
"""A fifth of its default: it is how long a dead group counts as healthy."""
SETTLED_STEPS = 8
_HERE = Path(__file__).parent
_ENVIRONMENT = _HERE.parents[1] / ".venv-clients" / "torchft" / "bin"
_LIMIT_S = 45.0
_TAIL = 160


@dataclass
class Found:
    """Seconds from each kill; ``why_not`` says why there are no more of them."""

    survivors: list[float] = field(default_factory=list)
    """To the first step that the slowest survivor has committed without the dead group."""
    everybody: list[float] = field(default_factory=list)
    """To the first step that the slowest group has committed with the new one."""
    why_not: str | None = None


class _Gone(RuntimeError):
    pass


class _Groups:
    def __init__(self, arguments: list[str], folder: Path, count: int, *, is_stock: bool) -> None:
        self.folder = folder
        self.count = count
        self._arguments = arguments
        self._told = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **({"STOCK": "1"} if is_stock else {})}
        self._port = free_port()
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self._lighthouse: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        limits = ["--heartbeat_timeout_ms", str(HEARTBEAT_MS), "--join_timeout_ms", "60000", "--quorum_tick_ms", "100"]
        command = [str(_ENVIRONMENT / "torchft_lighthouse"), "--min_replicas", "1", "--bind", f"[::]:{self._port}", *limits]
        with (self.folder / "lighthouse").open("w") as log:
            self._lighthouse = subprocess.Popen(command, env=self._told, stdout=log, stderr=log)
        for group in range(self.count):
            self.launch(group)

    def launch(self, group: int) -> None:
        told = {**self._told, "GROUP": str(group), "TORCHFT_LIGHTHOUSE": f"http://localhost:{self._port}"}
        command = [str(_ENVIRONMENT / "python"), str(_HERE / "torchft_steps.py"), *self._arguments, str(self.folder)]
        with (self.folder / f"log-{group}").open("a") as log:
            self.running[group] = subprocess.Popen(command, env=told, stdout=log, stderr=log)

    def end(self) -> None:
        for process in [*self.running.values(), *([self._lighthouse] if self._lighthouse else [])]:
            process.kill()
            process.wait()

    def steps(self, group: int, participants: int, since: float) -> list[float]:
        """When this group, in its present process, committed steps with so many participants."""
        path = self.folder / f"steps-{group}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        words = [line.split() for line in lines if line.endswith("\n")]
        pid = str(self.running[group].pid)
        return [float(at) for at, _, of, number in words if of == pid and int(number) == participants and float(at) > since]

    def await_(self, what: str, found: Callable[[], float | None]) -> float:
        deadline = time.monotonic() + _LIMIT_S
        while (value := found()) is None:
            dead = [group for group, process in self.running.items() if process.poll() is not None]
            if dead:
                lines = (self.folder / f"log-{dead[0]}").read_text(errors="replace").splitlines()
                said = next((line.strip() for line in reversed(lines) if "Error" in line), "no word of why")
                message = f"{what}: group {dead[0]} has ended: {said[-_TAIL:]}"
                raise _Gone(message)
            if time.monotonic() > deadline:
                message = f"{what}: not within {_LIMIT_S:.0f} s"
                raise _Gone(message)
            time.sleep(0.02)
        return value


def kills(arguments: list[str], folder: Path, *, groups: int, count: int, seed: int, is_stock: bool = False) -> Found:
    """``arguments`` are those of ``torchft_steps.py`` without the folder. What does not install or run here is no failure of the benchmark."""
    if not (_ENVIRONMENT / "torchft_lighthouse").exists():
        return Found(why_not="not installed: make bench-peers")
    chance, found = random.Random(seed), Found()  # noqa: S311, it draws moments
    running = _Groups(arguments, folder, groups, is_stock=is_stock)
    try:
        running.start()
        for _ in range(count):
            since = time.time()
            running.await_("all groups train", lambda since=since: _all(running, range(groups), groups, since, SETTLED_STEPS))
            time.sleep(chance.uniform(0.0, 0.3))
            _one_kill(running, chance.randrange(groups), found)
    except (_Gone, OSError) as error:
        found.why_not = f"after {len(found.everybody)} kills: {error}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.end()
    return found


def _one_kill(running: _Groups, victim: int, found: Found) -> None:
    killed = time.time()
    running.running[victim].send_signal(signal.SIGKILL)
    running.running[victim].wait()
    running.launch(victim)
    survivors = [group for group in range(running.count) if group != victim]
    alone = running.await_("the survivors' next step", lambda: _all(running, survivors, len(survivors), killed, 1))
    together = running.await_(
        "the next step of all", lambda: _all(running, range(running.count), running.count, max(killed, alone), 1)
    )
    found.survivors.append(alone - killed)
    found.everybody.append(together - killed)


def _all(running: _Groups, groups: object, participants: int, since: float, steps: int) -> float | None:
    """When the slowest of the groups had committed so many steps since then; None as long as one has not."""
    times = [running.steps(group, participants, since) for group in groups]  # type: ignore[attr-defined]
    return max(of[steps - 1] for of in times) if all(len(of) >= steps for of in times) else None
