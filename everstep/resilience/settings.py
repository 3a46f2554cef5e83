"""What the environment tells a training process, read once, in ``everstep.init``, and what it has to tell torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.evidence import HANG_AFTER_S, HANG_AFTER_VARIABLE
from everstep.protocol import FAULTS_VARIABLE, NODE_ID_VARIABLE, PREFETCH_VARIABLE


@dataclass(frozen=True)
class Settings:
    """``socket_path`` is None outside of a job: then the process is a run of its own, of one rank."""

    job: str
    process: str
    socket_path: str | None
    address: str
    seed: int
    expected_world_size: int | None
    faults_path: str | None
    node: str | None = None
    prefetch_folder: Path | None = None
    """In this node's shared memory, of this job alone."""
    hang_after_s: float = HANG_AFTER_S


def read(environment: Mapping[str, str] | None = None) -> Settings:
    seen = os.environ if environment is None else environment
    expected = int(seen.get("WORLD_SIZE") or 0)
    return Settings(
        job=seen.get("EVERSTEP_JOB_ID", "local"),
        process=seen.get("EVERSTEP_PROCESS_ID", f"{socket.gethostname()}-{os.getpid()}"),
        socket_path=seen.get("EVERSTEP_SOCKET") or None,
        address=seen.get("EVERSTEP_NODE_ADDRESS", "127.0.0.1"),
        seed=int(seen.get("EVERSTEP_SEED", "0")),
        expected_world_size=expected or None,
        faults_path=seen.get(FAULTS_VARIABLE) or None,
        node=seen.get(NODE_ID_VARIABLE),
        hang_after_s=float(seen.get(HANG_AFTER_VARIABLE) or HANG_AFTER_S),
        prefetch_folder=Path(seen[PREFETCH_VARIABLE]) if seen.get(PREFETCH_VARIABLE) else None,
    )


def survive_nccl_errors() -> None:
    """Has torch's watchdog abort a communicator that has failed. By default it ends the process, and the survivor with it."""
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
