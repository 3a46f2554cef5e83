"""Faults that fire once, at a named point of the step or of a reform.

A fault is claimed by creating a file, so it fires once however often the step is trained again and whichever process plays the rank.
The runtime passes the points of ``PHASES`` by itself; a script may pass more with ``point("mid-update")``.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

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
"""``backward`` and ``mid-update`` are in the user's code and need a ``point`` there. The last three are phases of a reform."""


class InjectedFault(RuntimeError):
    """This error was asked for, by a fault of kind "raise"."""


@dataclass(frozen=True)
class Fault:
    """Fires when ``rank`` passes ``phase`` at ``step``, or, when ``generation`` is set, in that generation.

    ``after_ms`` delays a kill, from a thread: the process dies somewhere inside what follows the point.
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
    faults: tuple[Fault, ...] = ()
    claims: Path | None = None
    rank = 0
    step = 0
    generation = 0
    is_quiet = False


def arm(path: str | Path, faults: Iterable[Fault] | None = None) -> None:
    """Reads the faults from a file; with ``faults`` writes them there first. Claims are kept beside it, in ``<path>.fired``."""
    target = Path(path)
    if faults is not None:
        target.write_text(json.dumps([asdict(fault) for fault in faults]))
    _Armed.faults = tuple(Fault(**wire) for wire in json.loads(target.read_text()))
    _Armed.claims = target.with_name(target.name + ".fired")
    _Armed.claims.mkdir(exist_ok=True)


def stand(rank: int, step: int, generation: int, *, is_quiet: bool = False) -> None:
    """Where this process is. The runtime says so; while ``is_quiet`` (a rehearsal) nothing fires."""
    _Armed.rank, _Armed.step, _Armed.generation, _Armed.is_quiet = rank, step, generation, is_quiet


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
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True


def _fire(fault: Fault) -> None:
    if fault.kind == "raise":
        message = f"asked for at rank {fault.rank}, step {_Armed.step}, phase {fault.phase}"
        raise InjectedFault(message)
    if fault.after_ms > 0:
        threading.Timer(fault.after_ms / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
