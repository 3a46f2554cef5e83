"""What faults do to the process in which they strike. Standard library only: of a gradient only what every tensor has is used."""

from __future__ import annotations

import os
import signal
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from everstep.protocol import NODE_ID_VARIABLE

_HIGHEST_OF_EXPONENT = 1 << 30
"""Of a number of four bytes: a small one becomes huge, and one from 2 on becomes tiny."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_node(node: str | None) -> None:
    """Every process of the node, this one last. Twice: the node's init may be about to start something when it is found."""
    mark = f"{NODE_ID_VARIABLE}={node}".encode()
    for _ in range(2):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _carries(entry, mark):
                with suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
    kill()


def hang(seconds: float | None) -> None:
    """Nobody will ever say that it may go on; signals are answered meanwhile."""
    threading.Event().wait(seconds)


def corrupted(gradient: Any, how: str | None, factor: float | None) -> Any:
    """A copy of the gradient with that done to it. One element is changed, the first, or all of them by ``scale``."""
    changed = gradient.detach().clone().contiguous()
    flat = changed.view(-1)
    if how == "scale":
        flat.mul_(factor)
    elif flat.numel():
        flat[0] = float("nan") if how == "nan" else _flipped(float(flat[0]))
    return changed


def corrupt_in_place(parameter: Any, how: str | None, factor: float | None) -> None:
    """The gradient that a parameter has, of a sharded one this process's part."""
    gradient = parameter.grad
    inside = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    inside.copy_(corrupted(inside, how, factor))


def _flipped(value: float) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    flipped: float = struct.unpack("<f", struct.pack("<I", bits ^ _HIGHEST_OF_EXPONENT))[0]
    return flipped


def _carries(entry: Path, mark: bytes) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
