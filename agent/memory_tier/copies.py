"""Who holds which of the shards that a node has in memory, as far as it knows; and what follows for it. No clocks, no sockets.

A node that has newer steps of a namespace and not this one has let go of it, as everybody will soon; one that has nothing of it has lost its memory. So a
copy only counts as lost when its holder is gone, or holds neither this step nor a newer one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everstep.shards import Seal

from .placing import heir


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
        self._newest: dict[str, dict[str, int]] = {}

    def made(self, shard: Shard, node: str) -> None:
        self._holders.setdefault(shard, set()).add(node)

    def saw(self, node: str, inventory: Iterable[Seal], ours: Collection[Shard]) -> None:
        """All that another node holds: what it has of ours counts, what it has lost of ours does not any more."""
        held = {shard_of(seal) for seal in inventory}
        newest: dict[str, int] = {}
        for shard in held:
            newest[shard.namespace] = max(shard.step, newest.get(shard.namespace, shard.step))
        self._newest[node] = newest
        for shard in ours:
            if shard in held:
                self.made(shard, node)
            elif newest.get(shard.namespace, -1) < shard.step:
                self._holders.get(shard, set()).discard(node)

    def lost(self, node: str) -> None:
        """It is gone with all it held."""
        self._newest.pop(node, None)
        for holders in self._holders.values():
            holders.discard(node)

    def keep_only(self, ours: Collection[Shard]) -> None:
        self._holders = {shard: holders for shard, holders in self._holders.items() if shard in ours}

    def elsewhere(self, seal: Seal, alive: Collection[str]) -> frozenset[str]:
        """The other nodes that hold a shard. Its writer does, unless it is gone or has said that it has neither this step nor a newer one."""
        known = {node for node in self._holders.get(shard_of(seal), ()) if node in alive}
        newest = self._newest.get(seal.origin)
        if seal.origin in alive and (newest is None or newest.get(seal.namespace, -1) >= seal.step):
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
