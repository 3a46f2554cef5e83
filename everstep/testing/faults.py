"""Faults that fire once, at a named point of the step or of a reform.

A fault is claimed by creating a file, so it fires once however often the step is trained again and whichever process plays the rank.
The runtime passes the points of ``PHASES`` by itself; a script may pass more of its own with ``point("my-phase")``.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everstep.protocol import NODE_ID_VARIABLE

PHASES = (
    "forward",
    "backward",
    "all-reduce",
    "after-reduce",
    "vote",
    "before-update",
    "mid-update",
    "after-update",
    "agree",
    "construct",
    "transfer",
)
"""``backward`` is when the gradient of the model's middle parameter is there, ``mid-update`` when the optimizer has stepped and the rest of
the update is still to come: both are in the user's code, where hooks see them. The last three are phases of a reform."""


class InjectedFault(RuntimeError):
    """This error was asked for, by a fault of kind "raise"."""


@dataclass(frozen=True)
class Fault:
    """Fires when ``rank`` passes ``phase`` at ``step``, or, when ``generation`` is set, in that generation.

    ``kind``: ``kill`` (SIGKILL to the process), ``kill-node`` (SIGKILL to every process of its node) or ``raise``. ``after_ms`` delays a kill,
    from a thread: the process dies somewhere inside what follows the point.
    """

    rank: int
    phase: str
    step: int | None = None
    generation: int | None = None
    kind: str = "kill"
    after_ms: float = 0.0

    def matches(self, rank: int, phase: str, step: int, generation: int) -> bool:
        return (
            self.phase == phase
            and self.rank == rank
            and (self.step is None or self.step == step)
            and (self.generation is None or self.generation == generation)
        )


class _Armed:
    node: str | None = None
    faults: tuple[Fault, ...] = ()
    claims: Path | None = None
    rank = 0
    step = 0
    generation = 0
    is_quiet = False


def arm(path: str | Path, faults: Iterable[Fault] | None = None, *, node: str | None = None) -> None:
    """Reads the faults from a file; with ``faults`` writes them there first. Claims are kept beside it, in ``<path>.fired``."""
    target = Path(path)
    if faults is not None:
        target.write_text(json.dumps([asdict(fault) for fault in faults]))
    _Armed.faults = tuple(Fault(**wire) for wire in json.loads(target.read_text()))
    _Armed.claims = target.with_name(target.name + ".fired")
    _Armed.claims.mkdir(exist_ok=True)
    _Armed.node = node


def stand(rank: int, step: int, generation: int, *, is_quiet: bool = False) -> None:
    """Where this process is. The runtime says so; while ``is_quiet`` (a rehearsal) nothing fires."""
    _Armed.rank, _Armed.step, _Armed.generation, _Armed.is_quiet = rank, step, generation, is_quiet


def hook(model: Any, optimizer: Any) -> None:
    """Has a torch module and optimizer pass ``backward`` and ``mid-update``. Does nothing when no fault is armed."""
    if not _Armed.faults:
        return
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if trained:
        trained[len(trained) // 2].register_hook(lambda _: point("backward"))
    if optimizer is not None:
        optimizer.register_step_post_hook(lambda *_: point("mid-update"))


def point(phase: str) -> None:
    """Passes a point: fires the first fault that matches here and has not fired yet."""
    if not _Armed.faults or _Armed.is_quiet:
        return
    for number, fault in enumerate(_Armed.faults):
        if fault.matches(_Armed.rank, phase, _Armed.step, _Armed.generation) and _claim(number):
            _fire(fault)
            return


def _claim(number: int) -> bool:
    if _Armed.claims is None:
        return False
    try:
        descriptor = os.open(_Armed.claims / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(descriptor, json.dumps({"pid": os.getpid(), "node": _Armed.node, "at": time.time()}).encode())
    os.close(descriptor)
    return True


def _fire(fault: Fault) -> None:
    if fault.kind == "raise":
        message = f"asked for at rank {fault.rank}, step {_Armed.step}, phase {fault.phase}"
        raise InjectedFault(message)
    strike = _kill_node if fault.kind == "kill-node" else _kill
    if fault.after_ms > 0:
        threading.Timer(fault.after_ms / 1000, strike).start()
    else:
        strike()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_node() -> None:
    """Every process of the node, this one last. Twice: the node's init may be about to start something when it is found."""
    mark = f"{NODE_ID_VARIABLE}={_Armed.node}".encode()
    for _ in range(2):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _carries(entry, mark):
                with suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
    _kill()


def _carries(entry: Path, mark: bytes) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
