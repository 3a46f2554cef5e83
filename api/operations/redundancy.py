"""How many copies of a job's state live, and what the worst fault costs: in words, before and after its ranks have told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint.policy import policy_of
from models.job.elastic import elastic_of
from models.job.plain import is_plain


@dataclass(frozen=True)
class Told:
    """What the ranks say of the membership in force, which lives on so many nodes."""

    copies: int
    worst_loss: int
    nodes: int


@dataclass(frozen=True)
class Redundancy:
    """How many ``copies`` of each part of the state live in the ranks, None if that is not known yet, and what the worst single fault costs.

    ``worst_loss`` is in committed steps, None if it depends on the newest checkpoint. ``warning`` is set if one fault can take the only copy.
    """

    copies: int | None
    worst_loss: int | None
    words: str
    warning: str | None = None


def of_job(
    spec: Mapping[str, Any], *, replicas: int, processes: int, told: Told | None = None, has_tier: bool = True
) -> Redundancy:
    """Of a job on ``replicas`` nodes with so many ``processes`` each. ``has_tier``: its nodes have a memory tier, which keeps checkpoints."""
    fallback = _fallback(spec, has_tier=has_tier)
    if is_plain(spec):
        words = f"Its processes keep no copy of each other's state (recovery: process): a fault costs {fallback}."
        return Redundancy(0, None, words, f"no redundancy: {words}")
    elastic = elastic_of(spec)
    least = replicas if elastic is None else elastic.least
    if replicas * processes == 1 or (told is not None and told.copies == 1):
        words = f"One copy of the state lives in the ranks: a fault that takes a process costs {fallback}."
        return Redundancy(1, None, words, f"no redundancy: {words}")
    found = _expected(replicas, processes) if told is None else _known(told)
    warning = None
    if replicas == 1 or (told is not None and told.nodes == 1):
        warning = f"no redundancy against the loss of a node: all copies are on one, whose loss costs {fallback}."
    elif least * processes == 1:
        warning = f"no redundancy at its least size, a single process: a fault then costs {fallback}."
    return Redundancy(found.copies, found.worst_loss, f"{found.words} If all copies go at once: {fallback}.", warning)


def _expected(replicas: int, processes: int) -> Redundancy:
    size = replicas * processes
    words = (
        f"At least 2 copies of each part of the state in {size} ranks, as they will tell: {size} with DDP and no step lost, one a replica with HSDP and no "
        f"step lost, 2 with pure FSDP and at most replicate_every steps lost, 1 unless the script says otherwise."
    )
    return Redundancy(None, None, words)


def _known(told: Told) -> Redundancy:
    costs = "no committed step" if told.worst_loss == 0 else f"at most {_steps(told.worst_loss)}"
    nodes = "one node" if told.nodes == 1 else f"{told.nodes} nodes"
    words = f"{told.copies} copies of each part of the state live in the ranks on {nodes}: the loss of one costs {costs}."
    return Redundancy(told.copies, told.worst_loss, words)


def _fallback(spec: Mapping[str, Any], *, has_tier: bool) -> str:
    """What is lost when nothing is left but checkpoints."""
    policy = policy_of(spec, "")
    parts = []
    if has_tier and policy.replicas > 1:
        every = "chosen from measured costs" if policy.memory_every is None else _steps(policy.memory_every)
        parts.append(
            f"the steps since the newest checkpoint in memory, of which {policy.replicas} nodes hold a copy (every: {every})"
        )
    every = "chosen from measured costs" if policy.durable_every is None else _steps(policy.durable_every)
    parts.append(f"the steps since the newest checkpoint in the object store (every: {every})")
    return ", or ".join(parts) + ", if the script saves any"


def _steps(count: int) -> str:
    return f"{count} step{'s' if count > 1 else ''}"
