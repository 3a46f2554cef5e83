"""What a tier lets go of. Pure.

Report R-17 is the law here: the newest complete step of a namespace stays until a newer one is complete, whatever is asked, and while it is not known
which one that is, nothing goes. Only an operator's smaller percentage, or the end of the tier, goes further.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from everstep.shards import Seal

PENDING_S = 60.0
"""How long a step may take from its first seal here to its last seal anywhere before it may give way to another save."""


@dataclass(frozen=True)
class Kept:
    """What is known of a namespace. ``keep`` counts complete steps. ``saves`` tells which save of a step is complete, where that is known.

    ``pinned`` steps go only under pressure (pinned by a person, or not drained yet). ``is_by_time`` orders steps by when they were written, as for
    clients that go back without saying so; else by their number.
    """

    keep: int
    newest_complete: int | None
    pinned: frozenset[int] = frozenset()
    saves: Mapping[int, str] = field(default_factory=dict)
    is_by_time: bool = False


def to_retire(seals: Collection[Seal], kept: Kept) -> tuple[Seal, ...]:
    """Of one namespace: what goes now, oldest first."""
    if kept.newest_complete is None:
        return ()
    order = _in_order(seals, kept)
    past, _ = _split(order, kept, kept.newest_complete)
    counted = [step for step in past if not kept.saves or step in kept.saves]
    stays = {*counted[len(counted) - (kept.keep - 1) :]} if kept.keep > 1 else set()
    gone = {step for step in past if step not in stays and step not in kept.pinned}
    return tuple(seal for seal in _oldest_first(seals, order) if seal.step in gone or _is_superseded(seal, seals, kept))


def under_pressure(seals: Collection[Seal], kept: Kept | None, *, now: float) -> tuple[tuple[Seal, ...], ...]:
    """Of one namespace: what may go for another save to find room, a step at a time, in the order in which it is to go.

    First what is older than the newest complete step, then what is younger and has been waiting to become complete for too long.
    """
    if kept is None or kept.newest_complete is None:
        return ()
    past, pending = _split(_in_order(seals, kept), kept, kept.newest_complete)
    past.sort(key=lambda step: step in kept.pinned)
    stale = [step for step in pending if _youngest(seals, step) < now - PENDING_S]
    return tuple(tuple(seal for seal in seals if seal.step == step) for step in (*past, *stale))


def for_a_smaller_cap(seals: Iterable[Seal], kept: Mapping[str, Kept]) -> tuple[Seal, ...]:
    """Of all namespaces: the order in which everything would go, oldest first, the newest complete steps last."""

    def is_last(seal: Seal) -> bool:
        known = kept.get(seal.namespace)
        return known is not None and known.newest_complete == seal.step

    return tuple(sorted(seals, key=lambda seal: (is_last(seal), seal.written_at)))


def _in_order(seals: Iterable[Seal], kept: Kept) -> list[int]:
    steps = {seal.step for seal in seals}
    if not kept.is_by_time:
        return sorted(steps)
    return sorted(steps, key=lambda step: _youngest(seals, step))


def _split(order: list[int], kept: Kept, newest: int) -> tuple[list[int], list[int]]:
    """What is older than the newest complete step, and what is younger. This node need not hold a shard of that step itself."""
    if newest in order:
        place = order.index(newest)
        return order[:place], order[place + 1 :]
    if kept.is_by_time:
        return [], []
    return [step for step in order if step < newest], [step for step in order if step > newest]


def _oldest_first(seals: Collection[Seal], order: list[int]) -> list[Seal]:
    place = {step: number for number, step in enumerate(order)}
    return sorted(seals, key=lambda seal: (place[seal.step], seal.written_at))


def _youngest(seals: Iterable[Seal], step: int) -> float:
    return max(seal.written_at for seal in seals if seal.step == step)


def _is_superseded(seal: Seal, seals: Collection[Seal], kept: Kept) -> bool:
    """Whether another save of its step is complete and younger."""
    save = kept.saves.get(seal.step)
    if save is None or seal.save == save or seal.step in kept.pinned:
        return False
    return any(one.step == seal.step and one.save == save and one.written_at > seal.written_at for one in seals)
