"""Faults at a named point of the step or of a reform, for tests of training scripts and of the runtime.

``with inject(at("vote", rank=1, step=12).kill()): …`` in a test; a file and a variable (``EVERSTEP_FAULTS``) for a whole job. A fault is claimed by
creating a file, so it strikes once however often the step is trained again and whichever process plays the rank. The runtime passes the
points of ``PHASES`` by itself; a script may pass more of its own with ``point("data/load")``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from everstep.protocol import FAULTS_VARIABLE

from . import strikes
from .plans import PHASES, REFORM_PHASES, STEP_PHASES, Fault, Point, at, check_phase, read, write
from .settings import announced

__all__ = [
    "PHASES",
    "REFORM_PHASES",
    "STEP_PHASES",
    "Fault",
    "Fired",
    "Injected",
    "InjectedFault",
    "Point",
    "arm",
    "at",
    "disarm",
    "hook",
    "inject",
    "point",
    "stand",
]


class InjectedFault(RuntimeError):
    """This error was asked for, by a fault of kind "raise"."""


class _Armed:
    node: str | None = None
    faults: tuple[Fault, ...] = ()
    seed = 0
    claims: Path | None = None
    rank = 0
    step = 0
    generation = 0
    stood_at = 0.0
    is_quiet = False
    hooked: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
    struck: weakref.ref[Any] | None = None
    """The parameter whose gradient a corruption changes."""


@dataclass(frozen=True)
class Fired:
    """One strike: which fault, in whose place, and when (Unix seconds)."""

    fault: Fault
    rank: int
    step: int
    generation: int
    pid: int
    node: str | None
    at: float


@dataclass(frozen=True)
class Injected:
    """What ``inject`` gives: where the faults are written down, and which of them have struck."""

    path: Path
    faults: tuple[Fault, ...]

    @property
    def environment(self) -> dict[str, str]:
        """What a job file's ``env`` wants, for a job whose processes can read ``path``."""
        return {FAULTS_VARIABLE: str(self.path)}

    @property
    def fired(self) -> tuple[Fired, ...]:
        """In the order of time, over all processes. Of a ``slow`` without ``times`` the first strike alone."""
        told = [json.loads(claim.read_text() or "{}") for claim in _claims_of(self.path).iterdir() if "@" not in claim.name]
        found = [Fired(fault=self.faults[one.pop("fault")], **one) for one in told if one]
        return tuple(sorted(found, key=lambda one: one.at))

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """Those that have not struck at all. A test that asserts that there are none has not been passed by chance."""
        struck = [one.fault for one in self.fired]
        return tuple(fault for fault in self.faults if fault not in struck)


@contextmanager
def inject(*faults: Fault, seed: int = 0, path: str | Path | None = None) -> Iterator[Injected]:
    """Arms this process, and whatever it starts meanwhile, with these faults and no others.

    Args:
        faults: as made by ``at(…)``, or ``Fault``s.
        seed: of those with a probability.
        path: where they are written down, with the claims beside it; by default in a folder of their own, which goes with the block.
    """
    folder = None if path is not None else Path(tempfile.mkdtemp(prefix="everstep-faults-"))
    target = Path(path) if path is not None else Path(folder or "", "faults.json")
    shutil.rmtree(_claims_of(target), ignore_errors=True)
    before = _Armed.faults, _Armed.seed, _Armed.claims, _Armed.node
    try:
        arm(target, faults, node=_Armed.node, seed=seed)
        with announced(target):
            yield Injected(target, faults)
    finally:
        _Armed.faults, _Armed.seed, _Armed.claims, _Armed.node = before
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def arm(path: str | Path, faults: Iterable[Fault] | None = None, *, node: str | None = None, seed: int = 0) -> None:
    """Reads the faults from a file; with ``faults`` writes them there first. Claims are kept beside it, in ``<path>.fired``.

    Raises:
        ValueError: the file is none of faults; it names the fault and the member.
    """
    target = Path(path)
    if faults is not None:
        write(target, faults, seed)
    _Armed.faults, _Armed.seed = read(target)
    _Armed.claims = _claims_of(target)
    _Armed.claims.mkdir(exist_ok=True)
    _Armed.node = node


def disarm() -> None:
    """Nothing strikes in this process any more."""
    _Armed.faults = ()


def stand(rank: int, step: int, generation: int, *, is_quiet: bool = False) -> None:
    """Where this process is. The runtime says so; while ``is_quiet`` (a rehearsal) nothing strikes."""
    _Armed.rank, _Armed.step, _Armed.generation, _Armed.is_quiet = rank, step, generation, is_quiet
    _Armed.stood_at = time.monotonic()


def hook(model: Any, optimizer: Any) -> None:
    """Has a torch module and optimizer pass ``backward`` and ``mid-update``. Does nothing when no fault is armed, or a second time."""
    if not _Armed.faults or model in _Armed.hooked:
        return
    _Armed.hooked.add(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if trained:
        middle = trained[len(trained) // 2]
        _Armed.struck = weakref.ref(middle)
        _hook_backward(model, middle)
    if optimizer is not None:
        optimizer.register_step_post_hook(lambda *_: _pass("mid-update"))


def point(phase: str, gradient: Any = None) -> Any:
    """Passes a point: the first fault that matches here and has not struck yet does.

    ``gradient`` is for corruptions of phase ``backward``: the changed one is returned, as torch's hooks want it; else None is.
    """
    if not _Armed.faults or _Armed.is_quiet:
        return None
    check_phase(phase)
    for number, fault in enumerate(_Armed.faults):
        if not fault.matches(_Armed.rank, phase, _Armed.step, _Armed.generation) or not _is_within_reach(fault, gradient):
            continue
        if not fault.is_drawn(_Armed.seed, number, _Armed.rank, _Armed.step, _Armed.generation) or not _claim(number, fault):
            continue
        changed = _strike(fault, gradient)
        if fault.kind != "slow":  # what is slow can be killed, too
            return changed
    return None


# ------------------------------------------------------------------------------------------------ inside


def _pass(phase: str) -> None:
    point(phase)


def _hook_backward(model: Any, middle: Any) -> None:
    """The hook of a sharded parameter never runs: autograd sees what was gathered of it. So it is what flows into its module."""
    if not hasattr(middle, "to_local"):
        middle.register_hook(partial(point, "backward"))
        return
    owner = next(module for module in model.modules() if any(one is middle for one in module.parameters(recurse=False)))
    owner.register_full_backward_pre_hook(_corrupt_flow)


def _corrupt_flow(_module: Any, flowing: tuple[Any, ...]) -> tuple[Any, ...] | None:
    changed = point("backward", flowing[0])
    return None if changed is None else (changed, *flowing[1:])


def _is_within_reach(fault: Fault, gradient: Any) -> bool:
    if fault.kind != "corrupt":
        return True
    if fault.phase == "backward":
        return gradient is not None
    parameter = _Armed.struck() if _Armed.struck is not None else None
    return parameter is not None and parameter.grad is not None


def _claims_of(path: Path) -> Path:
    return path.with_name(path.name + ".fired")


def _claim(number: int, fault: Fault) -> bool:
    """Whether this strike is this process's: of the occasion, where there may be several, and then of one of the ``times``."""
    is_endless = fault.kind == "slow" and fault.times is None
    if is_endless:
        _create(str(number), number)
        return True
    occasion = fault.occasion(_Armed.rank, _Armed.step, _Armed.generation)
    if (fault.times or 1) > 1 and not _create(f"{number}@{occasion}", number):
        return False
    slots = (str(number), *(f"{number}.{further}" for further in range(1, fault.times or 1)))
    return any(_create(slot, number) for slot in slots)


def _create(name: str, number: int) -> bool:
    """True in the one process that creates it."""
    if _Armed.claims is None:
        return False
    try:
        descriptor = os.open(_Armed.claims / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    told = {
        "fault": number,
        "rank": _Armed.rank,
        "step": _Armed.step,
        "generation": _Armed.generation,
        "pid": os.getpid(),
        "node": _Armed.node,
        "at": time.time(),
    }
    os.write(descriptor, json.dumps(told).encode())
    os.close(descriptor)
    return True


def _strike(fault: Fault, gradient: Any) -> Any:
    match fault.kind:
        case "raise":
            message = f"asked for at rank {_Armed.rank}, step {_Armed.step}, phase {fault.phase}"
            raise InjectedFault(message)
        case "hang":
            strikes.hang(fault.seconds)
        case "slow":
            time.sleep(_lost_s(fault))
        case "corrupt" if fault.phase == "backward":
            return strikes.corrupted(gradient, fault.how, fault.factor)
        case "corrupt":
            strikes.corrupt_in_place(_Armed.struck() if _Armed.struck else None, fault.how, fault.factor)
        case "kill" | "kill-node":
            _kill(fault)
    return None


def _lost_s(fault: Fault) -> float:
    """A factor is of the time since the step began, what was waited for the others included."""
    if fault.factor is None:
        return fault.seconds or 0.0
    return (fault.factor - 1) * (time.monotonic() - _Armed.stood_at)


def _kill(fault: Fault) -> None:
    strike = partial(strikes.kill_node, _Armed.node) if fault.kind == "kill-node" else strikes.kill
    if fault.after_ms > 0:
        threading.Timer(fault.after_ms / 1000, strike).start()
    else:
        strike()
