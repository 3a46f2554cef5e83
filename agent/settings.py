"""What the provider told this node's agent, read once from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

PREFIX = "EVERSTEP_"
MEMORY_TIERS = Path("/dev/shm/everstep")  # noqa: S108  (memory, shared by the node's processes and swept by name)


class SettingsError(ValueError):
    """A variable is missing or cannot be read; the message names it."""


@dataclass(frozen=True)
class Settings:
    """``instance_id`` is the node's name at its provider; ``state_dir`` survives the agent's restarts, and is the node's alone."""

    instance_id: str
    state_dir: Path
    api_url: str
    boot_token: str = field(repr=False)
    address: str
    vcpus: int
    memory_mib: int
    memory_tier_dir: Path
    """Where the memory tier's shards lie: the node's alone, and gone with it."""
    object_store_url: str | None = None
    grace_s: float = 10.0
    lifecycle_limit_s: float = 3600.0
    start: int = 0
    """Which start of the host this is."""

    @property
    def prefetch_dir(self) -> Path:
        """Where batches that are prepared for the node's jobs lie: beside the tier's, which may be a file system of its own."""
        return self.memory_tier_dir.with_name(f"{self.memory_tier_dir.name}.batches")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Raises SettingsError."""
        variables = os.environ if environment is None else environment
        return cls(
            instance_id=_text(variables, "NODE_ID"),
            state_dir=Path(_text(variables, "AGENT_STATE")),
            api_url=_text(variables, "API_URL").rstrip("/"),
            boot_token=_text(variables, "BOOT_TOKEN"),
            address=_text(variables, "NODE_ADDRESS"),
            vcpus=int(_number(variables, "NODE_VCPUS", 1)),
            memory_mib=int(_number(variables, "NODE_MEMORY_MIB", 1024)),
            memory_tier_dir=Path(variables.get(f"{PREFIX}MEMORY_TIER_DIR") or MEMORY_TIERS / _text(variables, "NODE_ID")),
            object_store_url=variables.get(f"{PREFIX}OBJECT_STORE_URL") or None,
            grace_s=_number(variables, "AGENT_GRACE_S", cls.grace_s),
            lifecycle_limit_s=_number(variables, "LIFECYCLE_LIMIT_S", cls.lifecycle_limit_s),
            start=int(_number(variables, "HOST_START", cls.start)),
        )


def _text(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(f"{PREFIX}{name}")
    if not value:
        message = f"{PREFIX}{name} is not set; the provider that starts an agent sets it"
        raise SettingsError(message)
    return value


def _number(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(f"{PREFIX}{name}") or str(default)
    try:
        return float(text)
    except ValueError as error:
        message = f"{PREFIX}{name} is {text!r}; it must be a number"
        raise SettingsError(message) from error
