"""What a job wants of its checkpoints, as its accepted file says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.tiers import Retention

REPLICAS = 2
KEPT_IN_MEMORY = 3
EVERYTHING = Retention()


@dataclass(frozen=True)
class Policy:
    """``memory_every`` and ``durable_every`` count steps; None leaves them to the script, and then to the automatic choice."""

    namespace: str
    memory_every: int | None = None
    durable_every: int | None = None
    replicas: int = REPLICAS
    keep_in_memory: int = KEPT_IN_MEMORY
    retention: Retention = EVERYTHING


def policy_of(spec: Mapping[str, Any], job_id: str) -> Policy:
    """The policy of an accepted job file, whose key ``checkpoint`` is absent, ``auto``, or a block with its defaults filled in."""
    told = spec.get("checkpoint")
    block: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    keep: Mapping[str, Any] = block.get("keep") or {}
    return Policy(
        namespace=block.get("namespace") or job_id,
        memory_every=block.get("memory_every"),
        durable_every=block.get("durable_every"),
        replicas=block.get("replicas") or REPLICAS,
        keep_in_memory=keep.get("memory") or KEPT_IN_MEMORY,
        retention=Retention(
            last=keep.get("last"), every=keep.get("every"), max_age_s=keep.get("max_age"), max_bytes=keep.get("max_bytes")
        ),
    )
