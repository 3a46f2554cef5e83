"""Peers in environments of their own under ``.venv-clients``, which ``make bench`` builds: DLRover's flash checkpoint and lm-resiliency."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).parent
_ENVIRONMENTS = _HERE.parents[1] / ".venv-clients"
_LIMIT_S = 240.0
_TAIL = 160


@dataclass(frozen=True)
class Peer:
    """``samples`` are seconds by name, ``memcpy`` among them; ``why_not``: why there are none."""

    name: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    why_not: str | None = None


PROGRAMS = {
    "DLRover flash checkpoint 0.6.1": ("dlrover", "dlrover_flash.py"),
    "lm-resiliency 0.2.0": ("lm-resiliency", "lm_resiliency_saves.py"),
}


def measured(folder: Path, mib: int, rounds: int) -> Iterator[Peer]:
    """Each peer's figures, or why it has none: what does not install or does not run here is no failure of the benchmark."""
    for name, (environment, script) in PROGRAMS.items():
        yield _measure(name, environment, script, folder, (str(mib), str(rounds)))


def _measure(name: str, environment: str, script: str, folder: Path, sizes: tuple[str, str]) -> Peer:
    python = _ENVIRONMENTS / environment / "bin" / "python"
    if not python.exists():
        return Peer(name, why_not="not installed: make bench-peers")
    out, log = folder / f"{environment}.json", folder / f"{environment}.log"
    run_id = f"everstep-bench-{os.getpid()}-{environment}"
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={run_id}", "--nproc-per-node=2"]
    command = [str(python), "-m", "torch.distributed.run", *rendezvous, str(_HERE / script), *sizes, str(out)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with log.open("w") as words:  # a file: a saver that it forks keeps its output open
        process = subprocess.Popen(command, env=variables, cwd=folder, stdout=words, stderr=words, start_new_session=True)
        try:
            code = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
            _clear(run_id)
    if code != 0 or not out.exists():
        lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line] or ["no word of why"]
        return Peer(name, why_not=f"{'it did not end' if code is None else f'exit code {code}'}: {lines[-1][-_TAIL:]}")
    return Peer(name, json.loads(out.read_text()))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever it has started is of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _clear(run_id: str) -> None:
    """DLRover leaves its shared memory and sockets behind, under the run's id."""
    for place in (Path("/dev/shm"), Path("/tmp/ckpt_sock")):  # noqa: S108  (its places, not ours)
        for left in place.glob(f"{run_id}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
