"""What a node carries for people and schedulers to see: labels, taints, the note of its faults. Pure; the names are HyperPod's.

Taints are kept as ``KubernetesConfig`` spells them: ``{"Key", "Value", "Effect"}``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from models.node.states import Schedulability

PREFIX: Final = "sagemaker.amazonaws.com/"
HEALTH: Final = f"{PREFIX}node-health-status"
DEEP_CHECK: Final = f"{PREFIX}deep-health-check-status"
FAULT_TYPES: Final = f"{PREFIX}fault-types"
FAULT_REASONS: Final = f"{PREFIX}fault-reasons"
FAULT_DETAILS: Final = f"{PREFIX}fault-details"
"""An annotation: a list of ``{"timestamp", "type", "reason", "message"}``."""
TAINT: Final = {"Key": HEALTH, "Value": Schedulability.UNSCHEDULABLE.value, "Effect": "NoSchedule"}
DECLARED: Final = "declared"
"""The fact of a node that keeps what its group declared when it was last put on."""
OURS: Final = frozenset({HEALTH, FAULT_TYPES, FAULT_REASONS})
"""Labels that follow from a node's health. Whoever sets the first by hand asks for what it says; the others are put right again."""


@dataclass(frozen=True)
class Worn:
    """All that a node carries."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()


def dressed(
    now_worn: Worn,
    *,
    schedulability: Schedulability,
    is_leaving: bool,
    types: Collection[str] = (),
    reasons: Collection[str] = (),
    declared: Worn = Worn(),
    declared_before: Worn = Worn(),
) -> Worn:
    """What a node is to carry that carries this now: its health's and its group's, and what people have put on it besides.

    ``declared_before`` is what its group declared when this was last asked: what the group no longer declares is taken off. A group does not
    declare the words of a node's health.
    """
    dropped = set(declared_before.labels) | OURS
    labels = {name: value for name, value in now_worn.labels.items() if name not in dropped}
    labels |= {name: value for name, value in declared.labels.items() if name not in OURS}
    labels[HEALTH] = schedulability.value
    if types:
        labels[FAULT_TYPES] = _joined(types)
    if reasons:
        labels[FAULT_REASONS] = _joined(reasons)
    taints = [taint for taint in now_worn.taints if taint not in declared_before.taints and taint.get("Key") != HEALTH]
    taints += [taint for taint in declared.taints if taint not in taints and taint.get("Key") != HEALTH]
    if is_leaving or schedulability is not Schedulability.SCHEDULABLE:
        taints.append(TAINT)
    return Worn(labels, tuple(dict(taint) for taint in taints))


def declared_in(config: Mapping[str, Any] | None) -> Worn:
    """What a group's ``KubernetesConfig`` declares."""
    config = config or {}
    taints = tuple({str(name): str(value) for name, value in taint.items()} for taint in config.get("Taints") or ())
    return Worn(dict(config.get("Labels") or {}), taints)


def _joined(words: Collection[str]) -> str:
    """As label values may look: words joined by a dash, in one order."""
    return "-".join(sorted(set(words)))[:63]


def declared_before(facts: Mapping[str, Any]) -> Worn:
    """What the group of a node with these facts declared when it was last put on."""
    kept = facts.get(DECLARED) or {}
    return Worn(dict(kept.get("labels", {})), tuple(dict(taint) for taint in kept.get("taints", ())))
