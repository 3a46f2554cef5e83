"""Who holds which shard, and what each rank therefore does. Pure: every rank decides alike from the same cards.

The target is the newest step of which *every* shard has a holder: a living one at that step, one that is a step behind with the reduced
gradient in hand, or a replica. Who is further rolls back to the replica that it keeps of its own shard; who has nothing reads its shard from
whoever holds it; when the number of shards changes, everybody reads rows of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everstep.protocol import Source

from .sharding import Seat

Mark = tuple[int, int, int]
"""Number of shards, which of them, at which step: a replica, as a card names it."""


@dataclass(frozen=True)
class Standing:
    """What one rank holds, and the seat that it is to take. ``seat`` is what its living state is of, None if it holds none."""

    rank: int
    wanted: Seat
    step: int
    seat: Seat | None
    is_reduced: bool
    replicas: tuple[Mark, ...] = ()

    def has_alive(self, seat: Seat, step: int) -> bool:
        return self.seat == seat and self.step == step

    def can_roll_forward(self, seat: Seat, step: int) -> bool:
        return self.seat == seat and self.is_reduced and self.step + 1 == step

    def has_replica(self, seat: Seat, step: int) -> bool:
        return (seat.shards, seat.index, step) in self.replicas


@dataclass(frozen=True)
class ShardPlan:
    """``holders[index]`` are the ranks from which shard ``index`` of ``shards`` can be read at ``step``, and ``sources[rank]`` is what that rank does.

    ``late`` are those of the holders that roll forward first: they can be read when their update is done. One that is to take another seat cannot.
    """

    shards: int
    step: int
    sources: tuple[Source, ...]
    holders: tuple[tuple[int, ...], ...]
    late: frozenset[int] = frozenset()

    def is_read(self, rank: int, wanted: tuple[Seat, ...]) -> bool:
        """Whether some other rank reads from this one."""
        readers = [seat for seat, source in zip(wanted, self.sources, strict=True) if source is Source.PEER]
        needed = {seat.index for seat in readers if seat.shards == self.shards}
        everything = any(seat.shards != self.shards for seat in readers)
        return any(rank in holders and (everything or index in needed) for index, holders in enumerate(self.holders))


def plan_shards(standings: tuple[Standing, ...]) -> ShardPlan | None:
    """None when no step has a holder of each of its shards. Standings are in order of rank."""
    for step, shards in sorted(_candidates(standings), reverse=True):
        if (plan := _plan(standings, shards, step)) is not None:
            return plan
    return None


def _candidates(standings: Iterable[Standing]) -> set[tuple[int, int]]:
    """(step, number of shards) of everything that anybody holds. A step that nobody has applied is none, even if all could roll forward to it."""
    living = {(one.step, one.seat.shards) for one in standings if one.seat is not None}
    return living | {(step, shards) for one in standings for shards, _, step in one.replicas}


def _plan(standings: tuple[Standing, ...], shards: int, step: int) -> ShardPlan | None:
    seats = [Seat(shards, index) for index in range(shards)]
    ready = [tuple(one.rank for one in standings if one.has_alive(seat, step) or one.has_replica(seat, step)) for seat in seats]
    late = [tuple(one.rank for one in standings if one.wanted == seat and one.can_roll_forward(seat, step)) for seat in seats]
    holders = tuple(now or then for now, then in zip(ready, late, strict=True))
    if not all(holders):
        return None
    sources = tuple(_source(one, step) for one in standings)
    waits = frozenset(rank for now, then in zip(ready, late, strict=True) if not now for rank in then)
    return ShardPlan(shards, step, sources, holders, waits)


def _source(one: Standing, step: int) -> Source:
    if one.has_alive(one.wanted, step):
        return Source.KEPT
    if one.can_roll_forward(one.wanted, step):
        return Source.ROLLED_FORWARD
    return Source.PEER
