"""Who holds which of the shards that a node has in memory, as far as it knows; and what follows for it. No clocks, no sockets.

Whoever lets go of an old step does so a little earlier or later than everybody else, which is no loss. So what another node does not hold any more
counts as lost for the newest steps only; for all, when the node itself is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everstep.shards import Seal

from .placing import heir

_NEWEST_STEPS = 2
"""One that may not be complete yet, and the one before it."""


@dataclass(frozen=True)
class Shard:
    """The bytes of one write: each node that holds them has a seal of its own."""

    namespace: str
    step: int
    index: int
    save: str
    digest: str


class Push(NamedTuple):
    """Make a replica of this shard there."""

    seal: Seal
    node: str


def shard_of(seal: Seal) -> Shard:
    return Shard(seal.namespace, seal.step, seal.index, seal.save, seal.digest)


class Copies:
    """Of this node's shards. Not for several threads at once."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._holders: dict[Shard, set[str]] = {}
        self._lacks: dict[str, set[Shard]] = {}

    def made(self, shard: Shard, node: str) -> None:
        self._holders.setdefault(shard, set()).add(node)
        self._lacks.get(node, set()).discard(shard)

    def saw(self, node: str, inventory: Iterable[Seal], ours: Collection[Shard]) -> None:
        """All that another node holds: what it has of ours counts, what it lacks of the newest of ours is lost there."""
        held = {shard_of(seal) for seal in inventory}
        self._lacks[node] = {shard for shard in _newest(ours) if shard not in held}
        for shard in ours:
            if shard in held:
                self.made(shard, node)
            elif shard in self._lacks[node]:
                self._holders.get(shard, set()).discard(node)

    def lost(self, node: str) -> None:
        """It is gone with all it held."""
        self._lacks.pop(node, None)
        for holders in self._holders.values():
            holders.discard(node)

    def keep_only(self, ours: Collection[Shard]) -> None:
        self._holders = {shard: holders for shard, holders in self._holders.items() if shard in ours}

    def elsewhere(self, seal: Seal, alive: Collection[str]) -> frozenset[str]:
        """The other nodes that hold a shard. Its writer does, unless it is gone or lacks it."""
        shard = shard_of(seal)
        known = {node for node in self._holders.get(shard, ()) if node in alive}
        if seal.origin in alive and shard not in self._lacks.get(seal.origin, ()):
            known.add(seal.origin)
        return frozenset(known - {self._node})

    def is_ours(self, seal: Seal, alive: Collection[str]) -> bool:
        """Whether this node sees to the copies of a shard: its writer does, and when that is gone the first of the holders."""
        holders = {self._node, *self.elsewhere(seal, alive)}
        return heir(seal.origin, holders, {self._node, *alive}) == self._node

    def lacking(self, seals: Iterable[Seal], wanted: int, order: Sequence[str], alive: Collection[str]) -> list[Push]:
        """What could be pushed now, the newest step first: for each shard that has fewer than ``wanted`` copies elsewhere, where they are to go.

        ``order`` are the nodes that may be asked. What is pushed to the first ones need not be pushed to the later ones.
        """
        pushes = []
        for seal in sorted(seals, key=lambda seal: (-seal.step, -seal.written_at)):
            holders = self.elsewhere(seal, alive)
            if len(holders) < wanted and self.is_ours(seal, alive):
                fresh = [node for node in order if node not in holders and node in alive]
                pushes += [Push(seal, node) for node in fresh[: wanted - len(holders)]]
        return pushes


def _newest(ours: Collection[Shard]) -> set[Shard]:
    """Of each namespace the shards of its newest steps held here."""
    steps: dict[str, set[int]] = {}
    for shard in ours:
        steps.setdefault(shard.namespace, set()).add(shard.step)
    newest = {namespace: sorted(found)[-_NEWEST_STEPS:] for namespace, found in steps.items()}
    return {shard for shard in ours if shard.step in newest[shard.namespace]}
