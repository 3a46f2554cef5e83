"""How long the checks of a node's health burn, and what they must measure at least. Read once from the environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from agent.settings import SettingsError

PREFIX = "EVERSTEP_HEALTH_"


@dataclass(frozen=True)
class Limits:
    """The floors tell a broken machine from a busy one, not a fast one from a slow one: an operator who knows the machines raises them."""

    stress_s: float = 5.0
    """How long each part of InstanceStress burns: processors, memory, disk."""
    cpu_mib_per_s: float = 20.0
    """What one processor must hash in a second (SHA-256)."""
    memory_mib: float = 64.0
    """How much memory is written and read back at a time."""
    memory_mib_per_s: float = 200.0
    disk_mib: float = 32.0
    """How much is written to the node's disk and read back at a time."""
    disk_mib_per_s: float = 5.0
    link_mib: float = 16.0
    """How much is sent to each peer."""
    link_mib_per_s: float = 10.0
    link_ms: float = 100.0
    """The longest median round trip to a peer."""
    reduce_mib: float = 16.0
    """How much two nodes sum up between them at a time."""
    reduce_mib_per_s: float = 5.0
    reduce_ms: float = 500.0
    """The longest median time in which two nodes sum up eight bytes."""
    reduce_s: float = 60.0
    """How long two nodes may take to find each other and to sum up."""
    reduce_pause_s: float = 1.0
    """How long is waited, three times, when every peer is summing up with somebody else."""
    accelerator_level: float = 2.0
    """How thoroughly accelerators are diagnosed: 1 for seconds, 2 for minutes, 3 for up to 23 minutes; higher ones are 3."""
    training_s: float = 120.0
    """How long nodes may take to find each other and to train together."""

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Self:
        """``EVERSTEP_HEALTH_STRESS_S`` etc. Raises SettingsError."""
        given = {}
        for spec in fields(cls):
            name = f"{PREFIX}{spec.name.upper()}"
            text = variables.get(name)
            if text:
                given[spec.name] = _positive(name, text)
        return cls(**given)


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        message = f"{name} is {text!r}; it must be a number above 0"
        raise SettingsError(message)
    return value
