"""What a fault is, how it is written down, and what is refused by name. Nothing here strikes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

STEP_PHASES = (
    "forward",
    "backward",
    "all-reduce",
    "after-reduce",
    "vote",
    "before-update",
    "mid-update",
    "after-update",
    "save",
)
REFORM_PHASES = ("agree", "construct", "transfer")
PHASES = (*STEP_PHASES, *REFORM_PHASES)
"""``backward`` is when the gradient of the model's middle parameter is there (of a sharded model: when backward reaches the module that has it),
``mid-update`` when the optimizer has stepped and the rest of the update is still to come: both are in the user's code, where hooks see them.
``save`` is when a save has begun, which goes on beside the next step. The last three are phases of a reform."""

KINDS = ("kill", "kill-node", "raise", "hang", "slow", "corrupt")
CORRUPTIONS = ("nan", "bit-flip", "scale")
_CORRUPTIBLE = ("backward", "after-reduce")
_TIMED = ("hang", "slow")


@dataclass(frozen=True)
class Fault:
    """Strikes when ``rank`` passes ``phase`` at ``step``, or, when ``generation`` is set, in that generation. What is None is any.

    Attributes:
        phase: one of ``PHASES``, or one of a script's own, which has a slash in it (``data/load``).
        until: with ``step``, every step from ``step`` up to this one, which is left out.
        kind: ``kill`` (SIGKILL to the process), ``kill-node`` (SIGKILL to every process of its node), ``raise`` (InjectedFault), ``hang`` (the
            training thread does nothing any more), ``slow`` (it waits), or ``corrupt`` (the gradient of the model's middle parameter changes).
        after_ms: delays a kill, from a thread: the process dies somewhere inside what follows the point.
        seconds: of a hang, which without it lasts for ever; or by which each step is slower.
        factor: how many times as long the step takes up to the point, when slow; what a gradient is multiplied by, when corrupted by ``scale``.
        how: of a corruption: ``nan`` (one element), ``bit-flip`` (the highest bit of one element's exponent) or ``scale`` (all of them).
        probability: of striking where it matches, drawn from (seed, fault, rank, step or generation): the same on every run.
        times: how often at the most, over all processes; None: once, and ``slow`` as often as it matches.
    """

    rank: int | None
    phase: str
    step: int | None = None
    generation: int | None = None
    kind: str = "kill"
    after_ms: float = 0.0
    until: int | None = None
    seconds: float | None = None
    factor: float | None = None
    how: str | None = None
    probability: float | None = None
    times: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError, which begins with the name of the member."""
        complaint = next((said for said in _complaints(self) if said), None)
        if complaint is not None:
            raise ValueError(complaint)

    def matches(self, rank: int, phase: str, step: int, generation: int) -> bool:
        return (
            self.phase == phase
            and self.rank in {None, rank}
            and self._is_at(step)
            and (self.generation is None or self.generation == generation)
        )

    def is_drawn(self, seed: int, number: int, rank: int, step: int, generation: int) -> bool:
        """Whether chance has it strike here; ``number`` is its place in the list."""
        if self.probability is None:
            return True
        where = self.occasion(rank, step, generation)
        return random.Random(f"{seed}/{number}/{where}").random() < self.probability  # noqa: S311, faults are no secrets

    def occasion(self, rank: int, step: int, generation: int) -> str:
        """What may be struck once: a rank's step, however often it is trained again; or a rank's reform."""
        return f"{rank}.g{generation}" if self.phase in REFORM_PHASES else f"{rank}.{step}"

    def _is_at(self, step: int) -> bool:
        if self.step is None:
            return True
        return step == self.step if self.until is None else self.step <= step < self.until


@dataclass(frozen=True)
class Point:
    """Where a fault is to strike; its methods say what strikes there. Made by ``at``."""

    where: Fault

    def kill(self, *, after_ms: float = 0.0, node: bool = False) -> Fault:
        return replace(self.where, kind="kill-node" if node else "kill", after_ms=after_ms)

    def error(self) -> Fault:
        """InjectedFault is raised."""
        return replace(self.where, kind="raise")

    def hang(self, seconds: float | None = None) -> Fault:
        return replace(self.where, kind="hang", seconds=seconds)

    def slow(self, *, seconds: float | None = None, factor: float | None = None) -> Fault:
        return replace(self.where, kind="slow", seconds=seconds, factor=factor)

    def corrupt(self, how: str = "nan", *, factor: float | None = None) -> Fault:
        return replace(self.where, kind="corrupt", how=how, factor=factor)

    def with_chance(self, probability: float, times: int = 1) -> Self:
        """Struck by chance, at most ``times`` in all."""
        return replace(self, where=replace(self.where, probability=probability, times=times))


def at(
    phase: str,
    *,
    rank: int | None = None,
    step: int | tuple[int, int] | None = None,
    generation: int | None = None,
) -> Point:
    """``at("vote", rank=1, step=12).kill()``. ``step=(10, 20)`` is every step from 10 to 19; what is left out is any."""
    first, end = step if isinstance(step, tuple) else (step, None)
    return Point(Fault(rank, phase, step=first, until=end, generation=generation))


def write(path: Path, faults: Iterable[Fault], seed: int) -> None:
    """One JSON object: ``seed``, and ``faults``, each with the members that are not as they are when left out."""
    usual = {field.name: field.default for field in fields(Fault)}
    told = [{name: value for name, value in asdict(fault).items() if value != usual[name]} for fault in faults]
    path.write_text(json.dumps({"seed": seed, "faults": told}))


def read(path: Path) -> tuple[tuple[Fault, ...], int]:
    """The faults of a file, and its seed. A bare list of faults is read, too.

    Raises:
        ValueError: it names the file, the fault by its number, and the member.
    """
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        message = f"{path}: no JSON: {error}"
        raise ValueError(message) from error
    told, seed = (found.get("faults"), found.get("seed", 0)) if isinstance(found, Mapping) else (found, 0)
    if not (isinstance(told, list) and isinstance(seed, int)):
        message = f"{path}: a list of faults is wanted, or an object with faults, a list, and seed, a whole number"
        raise ValueError(message)  # noqa: TRY004, one kind of error for whatever is wrong in a file
    return tuple(_fault(path, number, wire) for number, wire in enumerate(told)), seed


def _fault(path: Path, number: int, wire: object) -> Fault:
    where = f"{path}: faults[{number}]"
    if not isinstance(wire, Mapping):
        message = f"{where}: an object is wanted"
        raise ValueError(message)  # noqa: TRY004, one kind of error for whatever is wrong in a file
    known = [field.name for field in fields(Fault)]
    for name in wire:
        if name not in known:
            message = f"{where}.{name}: there is no such member; there are {', '.join(known)}"
            raise ValueError(message)
    try:
        return Fault(**{"rank": None, "phase": None, **wire})
    except ValueError as error:
        message = f"{where}.{error}"
        raise ValueError(message) from error


# ------------------------------------------------------------------------------------------------ what is refused


def _complaints(fault: Fault) -> Iterator[str | None]:
    for name in ("rank", "step", "generation"):
        yield _unless(
            _is_count(getattr(fault, name)), name, "a whole number from 0 is wanted, or nothing for any", getattr(fault, name)
        )
    yield _complaint_about_phase(fault.phase)
    yield _unless(fault.kind in KINDS, "kind", f"one of {', '.join(KINDS)} is wanted", fault.kind)
    yield _unless(_is_range(fault), "until", "a step after step is wanted, and step with it", fault.until)
    is_kill = fault.kind in {"kill", "kill-node"}
    yield _unless(_is_number(fault.after_ms), "after_ms", "a number from 0 is wanted", fault.after_ms)
    yield _unless(is_kill or not fault.after_ms, "after_ms", "only kills can be delayed", fault.after_ms)
    yield _unless(fault.seconds is None or _is_above(fault.seconds, 0), "seconds", "a number above 0 is wanted", fault.seconds)
    yield _unless(fault.seconds is None or fault.kind in _TIMED, "seconds", f"a {fault.kind} does not last", fault.seconds)
    yield from _complaints_about_strength(fault)
    is_chance = fault.probability is None or (_is_above(fault.probability, 0) and fault.probability <= 1)
    yield _unless(is_chance, "probability", "a number above 0 and up to 1 is wanted", fault.probability)
    yield _unless(_is_count(fault.times) and fault.times != 0, "times", "a whole number from 1 is wanted", fault.times)


def _complaints_about_strength(fault: Fault) -> Iterator[str | None]:
    factor = fault.factor
    if fault.kind == "slow":
        yield _unless((factor is None) != (fault.seconds is None), "factor", "slow wants either seconds or factor", factor)
        yield _unless(factor is None or _is_above(factor, 1), "factor", "a number above 1 is wanted", factor)
        yield _unless(fault.phase not in REFORM_PHASES or factor is None, "factor", "a reform has no step to be multiplied", factor)
        return
    is_scale = fault.kind == "corrupt" and fault.how == "scale"
    yield _unless(
        is_scale == (factor is not None), "factor", "it goes with slow, and with corrupt by scale, which wants it", factor
    )
    yield _unless(factor is None or _is_number(factor, -float("inf")), "factor", "a number is wanted", factor)
    if fault.kind == "corrupt":
        yield _unless(fault.how in CORRUPTIONS, "how", f"corrupt wants one of {', '.join(CORRUPTIONS)}", fault.how)
        yield _unless(fault.phase in _CORRUPTIBLE, "phase", f"gradients are at hand in {' and '.join(_CORRUPTIBLE)}", fault.phase)
    else:
        yield _unless(fault.how is None, "how", "it goes with corrupt alone", fault.how)


def _complaint_about_phase(phase: object) -> str | None:
    is_known = isinstance(phase, str) and (phase in PHASES or "/" in phase)
    return _unless(
        is_known, "phase", f"one of {', '.join(PHASES)} is wanted, or one of the script's own, with a slash in it", phase
    )


def check_phase(phase: str) -> None:
    """Raises ValueError: a point that no fault can name."""
    complaint = _complaint_about_phase(phase)
    if complaint is not None:
        raise ValueError(complaint)


def _unless(is_right: bool, member: str, wanted: str, got: object) -> str | None:
    return None if is_right else f"{member}: {wanted}; it is {got!r}"


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_number(value: object, least: float = 0.0) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= least


def _is_above(value: Any, least: float) -> bool:
    return _is_number(value) and value > least


def _is_range(fault: Fault) -> bool:
    if fault.until is None:
        return True
    return _is_count(fault.until) and fault.step is not None and fault.until > fault.step
