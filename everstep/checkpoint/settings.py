"""What the environment tells a training process about the tiers of its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from everstep.errors import CheckpointMismatch
from everstep.handover import SOCKET_VARIABLE, TOKEN_VARIABLE
from everstep.protocol import NODE_ID_VARIABLE
from everstep.shards import NAMESPACE, PORT


@dataclass(frozen=True)
class Settings:
    """``socket_path`` is None where no memory tier is, ``durable_url`` where no object store is.

    ``address`` and ``port`` are of this node's door. ``namespace`` is "default" outside of a job. ``every``, ``durable_every`` (steps) and ``mtbf_s``
    are what the job's file and the control plane say, for where no memory tier can tell it.
    """

    namespace: str
    socket_path: str | None
    token: str
    durable_url: str | None
    node: str
    address: str
    port: int
    job: str
    generation: str
    every: int | None = None
    durable_every: int | None = None
    mtbf_s: float | None = None


def environment(given: Mapping[str, str] | None = None) -> Mapping[str, str]:
    return os.environ if given is None else given


def read(seen: Mapping[str, str]) -> Settings:
    """Raises CheckpointMismatch if the namespace is none."""
    namespace = seen.get("EVERSTEP_NAMESPACE") or "default"
    if not NAMESPACE.fullmatch(namespace):
        message = f"EVERSTEP_NAMESPACE is {namespace!r}; a namespace is made of letters, digits, '_', '.' and '-', 200 at most"
        raise CheckpointMismatch(message)
    door = urlsplit(seen.get("EVERSTEP_CHECKPOINT_URL") or f"http://127.0.0.1:{PORT}")
    return Settings(
        namespace=namespace,
        socket_path=seen.get(SOCKET_VARIABLE) or None,
        token=seen.get(TOKEN_VARIABLE, ""),
        durable_url=seen.get("EVERSTEP_DURABLE_URL") or None,
        node=seen.get(NODE_ID_VARIABLE) or "local",
        address=door.hostname or "127.0.0.1",
        port=door.port or PORT,
        job=seen.get("EVERSTEP_JOB_ID", ""),
        generation=seen.get("EVERSTEP_GENERATION", ""),
        every=_steps(seen, "EVERSTEP_CHECKPOINT_EVERY"),
        durable_every=_steps(seen, "EVERSTEP_CHECKPOINT_DURABLE_EVERY"),
        mtbf_s=float(seen["EVERSTEP_CHECKPOINT_MTBF_S"]) if seen.get("EVERSTEP_CHECKPOINT_MTBF_S") else None,
    )


def _steps(seen: Mapping[str, str], name: str) -> int | None:
    return int(seen[name]) if seen.get(name) else None
