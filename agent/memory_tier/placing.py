"""Which nodes hold the replicas of what a node writes. Pure: every node comes to the same answer from the same list of nodes.

The nodes stand on a ring in the order of their names' hashes. A node's replicas go to the next ones on the ring that are in other zones, as far as
there are any, each node taking as many as it gives away. All shards of a node go to the same ones: among ways of placing replicas this loses
something with the least probability when several nodes are lost at once (GEMINI, SOSP 2023, §4), and keeps the segments there warm, since step after
step the same sizes arrive. A node that comes or goes changes what its neighbours on the ring do, and little for the others; where replicas are
already, they count, whatever is said here. With zones, evenness has its price: a lost node may move a tenth of the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

import xxhash


@dataclass(frozen=True)
class Place:
    """A node and the zone it stands in, as far as that is known."""

    node: str
    zone: str | None = None


def order(own: str, places: Iterable[Place], count: int) -> tuple[str, ...]:
    """All other nodes in the order in which they are asked to hold a replica of what ``own`` has written; the first ``count`` are meant to."""
    everybody = frozenset(places)
    chosen = _chosen(everybody, count).get(own, ())
    return (*chosen, *(place.node for place in _from(own, _ring(everybody)) if place.node != own and place.node not in chosen))


def heir(origin: str, holders: Collection[str], alive: Collection[str]) -> str | None:
    """Who looks after a shard: the node that wrote it while it lives and holds it, else the first holder behind it on the ring; None: nobody can."""
    able = [Place(node) for node in holders if node in alive]
    if not able:
        return None
    if any(place.node == origin for place in able):
        return origin
    return _from(origin, _ring(frozenset(able)))[0].node


@lru_cache(maxsize=8)
def _chosen(places: frozenset[Place], count: int) -> dict[str, tuple[str, ...]]:
    """For each node those that hold its replicas, at most ``count``. In the order of the ring, so that all nodes count the same load."""
    ring = _ring(places)
    load: Counter[str] = Counter()
    chosen = {}
    for place in ring:
        taken: list[Place] = []
        for _ in range(min(count, len(ring) - 1)):
            taken.append(_next(place, ring, taken, load, count))
            load[taken[-1].node] += 1
        chosen[place.node] = tuple(one.node for one in taken)
    return chosen


def _next(own: Place, ring: tuple[Place, ...], taken: list[Place], load: Counter[str], count: int) -> Place:
    """The first on the ring in a zone without a copy and with room; then a zone may repeat only if none is left, room matters after that."""
    zones = {one.zone for one in (own, *taken)} | {None}
    others = [one for one in _from(own.node, ring) if one.node != own.node and one not in taken]
    best = [one for one in others if one.zone not in zones] if own.zone is not None else []
    best = best or others
    return next((one for one in best if load[one.node] < count), None) or min(best, key=lambda one: load[one.node])


@lru_cache(maxsize=8)
def _ring(places: frozenset[Place]) -> tuple[Place, ...]:
    return tuple(sorted(places, key=_hash))


def _from(own: str, ring: tuple[Place, ...]) -> tuple[Place, ...]:
    """The ring, beginning behind ``own``, which need not stand on it any more."""
    cut = bisect_right(ring, _hash(Place(own)), key=_hash)
    return ring[cut:] + ring[:cut]


@lru_cache(maxsize=4096)
def _hash(place: Place) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(place.node.encode()), place.node
