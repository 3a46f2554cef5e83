"""The words in which a node's health is examined: part of ``everstep.protocol``, and as free of anything but the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.wire import Wire


@dataclass(frozen=True)
class Peer(Wire):
    """Where another node's agent listens to those who measure the way to it."""

    address: str
    port: int


@dataclass(frozen=True)
class Team(Wire):
    """Nodes that train together to show that they can: this one is ``rank`` of ``size``, and the first one's address and port are where they meet."""

    rank: int
    size: int
    address: str
    port: int


@dataclass(frozen=True)
class Floor(Wire):
    """What a node's all-reduces must reach, learned from those of its group: MiB/s at least, and ms for a small one at most."""

    mib_per_s: float
    ms: float


@dataclass(frozen=True)
class Check(Wire):
    """An examination of the node: a line ``{"check": …}`` of the directive stream, told again until the agent has said what it found.

    ``kinds`` are HyperPod's words: ``InstanceStress``, ``InstanceConnectivity`` with ``peers``, ``MultiNodeTrainingValidation`` with a ``team``.
    ``floor`` is None until enough nodes of the group have measured.
    """

    id: str
    kinds: tuple[str, ...]
    peers: tuple[Peer, ...] = ()
    team: Team | None = None
    floor: Floor | None = None


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding(Wire):
    """What one check found: a sentence, and what was measured against which threshold where it measures.

    ``name`` is given to what is compared from node to node: ``all_reduce_mib_per_s``, ``all_reduce_ms``.
    """

    kind: str
    verdict: Verdict
    says: str
    measured: float | None = None
    threshold: float | None = None
    unit: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class HealthReport(Wire):
    """What came of an examination. Told again when it is asked for again."""

    check: str
    findings: tuple[Finding, ...]
    kind: str = "health"
