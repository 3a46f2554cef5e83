"""Instance types: how much of everything a node of each type has. The data is in ``catalogue.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from models.errors import NotFound


@dataclass(frozen=True)
class InstanceType:
    """``accelerator`` names the device, None for a type that has none."""

    name: str
    vcpus: int
    memory_gib: int
    accelerator: str | None = None
    accelerators: int = 0

    @property
    def memory_mib(self) -> int:
        return self.memory_gib * 1024


@cache
def _all() -> dict[str, InstanceType]:
    data = tomllib.loads(resources.files("models").joinpath("catalogue.toml").read_text())
    return {name: InstanceType(name=name, **facts) for name, facts in data.items()}


def instance_type(name: str) -> InstanceType:
    """Raises NotFound for a type that the catalogue doesn't list."""
    try:
        return _all()[name]
    except KeyError:
        raise NotFound(kind="Instance type", name=name) from None


def accelerators(name: str) -> int:
    """How many a node of this type has; 0 for a type that the catalogue doesn't list: an operator's own hosts may be of any."""
    found = _all().get(name)
    return found.accelerators if found is not None else 0


def names() -> tuple[str, ...]:
    return tuple(_all())
