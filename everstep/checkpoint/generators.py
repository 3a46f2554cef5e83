"""The states of a process's random number generators, as a blob that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import io
import random
import sys
from typing import Any

import torch


def blob_name(rank: int) -> str:
    return f"everstep.generators.{rank}"


def pack() -> bytes:
    """Of torch on all devices, of ``random``, and of numpy if the program has imported it."""
    told = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "python": random.getstate(),
        "numpy": _numpy_state(),
    }
    blob = io.BytesIO()
    torch.save(told, blob)
    return blob.getvalue()


def unpack(blob: bytes) -> None:
    """Sets the generators to where they were. Those of devices that are not here are left out."""
    told = torch.load(io.BytesIO(blob), weights_only=True)
    torch.set_rng_state(told["torch"])
    if told["cuda"] and torch.cuda.is_available() and torch.cuda.device_count() == len(told["cuda"]):
        torch.cuda.set_rng_state_all(told["cuda"])
    version, words, gauss = told["python"]
    random.setstate((version, tuple(words), gauss))
    if told["numpy"] is not None:
        numpy: Any = __import__("numpy")
        name, keys, *others = told["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *others))


def _numpy_state() -> list[Any] | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    name, keys, place, has_gauss, gauss = numpy.random.get_state()
    return [name, keys.tolist(), int(place), int(has_gauss), float(gauss)]
