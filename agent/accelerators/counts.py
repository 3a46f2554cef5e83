"""How many devices a host of a type has."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path


def devices_of(instance_type: str) -> int | None:
    """None: a type that has none, or that nobody here knows. ``p5.48xlarge`` and ``ml.p5.48xlarge`` are the same."""
    return _counts().get(f"ml.{instance_type.removeprefix('ml.')}")


@functools.cache
def _counts() -> dict[str, int]:
    return tomllib.loads(Path(__file__).with_name("counts.toml").read_text())
