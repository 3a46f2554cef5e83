"""What a memory tier's process is told, read once from its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from everstep.handover import SOCKET_VARIABLE
from everstep.shards import PORT

PREFIX = "EVERSTEP_"
ROOT = "/dev/shm/everstep"  # noqa: S108  (the root of all nodes' shared memory; each node's folder below it is private)


class SettingsError(ValueError):
    """A variable is missing or cannot be read; the message names it."""


@dataclass(frozen=True)
class Settings:
    """``folder`` is where the memory lies, ``state_dir`` where the last plan is kept.

    ``is_mounting`` gives the tier a tmpfs of its own with huge pages, where the node allows that. ``scrub_s`` seconds after a round of hashing
    everything again the next one begins. ``drain_mib_s`` is what the object store may get a second while a shard goes there; None: as fast as it takes it.
    """

    node: str
    address: str
    memory_mib: int
    state_dir: Path
    folder: Path
    handover: Path
    control: Path
    is_mounting: bool = False
    port: int = PORT
    object_store_url: str | None = None
    scrub_s: float = 600.0
    drain_mib_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All of it: the object store's client finds its credentials there."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Raises SettingsError."""
        variables = dict(os.environ if environment is None else environment)
        state_dir = Path(_text(variables, f"{PREFIX}AGENT_STATE")).absolute()
        node = _text(variables, f"{PREFIX}NODE_ID")
        mount = variables.get(f"{PREFIX}MEMORY_TIER_MOUNT") or "never"
        if mount not in {"auto", "never"}:
            message = f"{PREFIX}MEMORY_TIER_MOUNT is {mount!r}; it must be auto or never"
            raise SettingsError(message)
        return cls(
            node=node,
            address=_text(variables, f"{PREFIX}NODE_ADDRESS"),
            memory_mib=int(_number(variables, f"{PREFIX}NODE_MEMORY_MIB", 1024)),
            state_dir=state_dir,
            folder=Path(variables.get(f"{PREFIX}MEMORY_TIER_DIR") or f"{ROOT}/{node}"),
            handover=Path(variables.get(SOCKET_VARIABLE) or state_dir / "tier.sock"),
            control=Path(variables.get(f"{PREFIX}MEMORY_TIER_CONTROL") or state_dir / "tier-control.sock"),
            is_mounting=mount == "auto",
            port=int(_number(variables, f"{PREFIX}MEMORY_TIER_PORT", PORT)),
            object_store_url=variables.get(f"{PREFIX}OBJECT_STORE_URL") or None,
            scrub_s=_number(variables, f"{PREFIX}MEMORY_TIER_SCRUB_S", cls.scrub_s),
            drain_mib_s=_number(variables, f"{PREFIX}MEMORY_TIER_DRAIN_MIB_S", 0.0) or None,
            environment=variables,
        )


def _text(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name)
    if not value:
        message = f"{name} is not set; the node's agent, which starts a memory tier, sets it"
        raise SettingsError(message)
    return value


def _number(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(name) or str(default)
    try:
        return float(text)
    except ValueError as error:
        message = f"{name} is {text!r}; it must be a number"
        raise SettingsError(message) from error
