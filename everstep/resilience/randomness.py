"""Randomness as a pure function of (seed, step, rank): whoever plays a rank draws the same numbers, so a replacement is bitwise equal."""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Generators:
    """The state of every generator that ``seed_step`` touches."""

    torch_state: torch.Tensor
    python_state: tuple[Any, ...]
    numpy_state: Any


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seeds torch (all devices), ``random`` and, when the script has imported it, numpy's global generator."""
    word = int.from_bytes(hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()[:8], "little") >> 1
    torch.default_generator.manual_seed(word)
    if (devices := _devices()) is not None:
        (getattr(devices, "manual_seed_all", None) or devices.manual_seed)(word)
    random.seed(word)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(word % (1 << 32))


@functools.cache
def _devices() -> Any:
    """Torch's module of the accelerators that are here; None where there is none.

    ``torch.manual_seed`` would have each kind of accelerator that torch knows, and that is not here, note a seed and the caller's stack: milliseconds
    in every step.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.get_device_module(accelerator) if accelerator is not None else None


def capture() -> Generators:
    numpy = sys.modules.get("numpy")
    return Generators(torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy is not None else None)


def restore(generators: Generators) -> None:
    torch.set_rng_state(generators.torch_state)
    random.setstate(generators.python_state)
    if generators.numpy_state is not None:
        sys.modules["numpy"].random.set_state(generators.numpy_state)
