"""Who makes a shard durable when its writer does not: asked of the other nodes, since nobody keeps a list."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from everstep.shards import Seal, ShardKind

from .backlog import Save
from .peers import PeerAway, Peers
from .placing import heir

log = logging.getLogger(__name__)


class Heirs:
    """Of ``node``, which asks its ``peers``. A peer that does not answer holds nothing."""

    def __init__(self, peers: Peers, *, node: str) -> None:
        self._peers = peers
        self._node = node

    def elsewhere(self, save: Save) -> Iterator[Seal]:
        """The seals of a save on other nodes."""
        for _, seals in self._inventories(save.namespace):
            yield from (seal for seal in seals if (seal.namespace, seal.step, seal.save) == save)

    def ours(self, orphans: Iterable[Seal]) -> set[str]:
        """Of shards that other nodes have written, all of one step, the stamps of those that this node sees to from now on.

        Their writers are gone, or do not hold them, and this node is the first of those that do.
        """
        orphans = tuple(orphans)
        holders: dict[tuple[int, str], set[str]] = {(seal.index, seal.digest): {self._node} for seal in orphans}
        for node, found in self._inventories(orphans[0].namespace) if orphans else ():
            for seal in found:
                if seal.step == orphans[0].step and (seal.index, seal.digest) in holders:
                    holders[seal.index, seal.digest].add(node)
        taken = set()
        for seal in orphans:
            able = holders[seal.index, seal.digest]
            if heir(seal.origin, able, able) == self._node:
                log.info(
                    "node %s can no longer make shard %d of step %d durable; this one does", seal.origin, seal.index, seal.step
                )
                taken.add(seal.stamp)
        return taken

    def is_torn(self, known: Iterable[Seal], save: Save) -> bool:
        """Whether a shard of a save is nowhere: neither among ``known`` nor on another node. False also while a peer does not answer."""
        parts = list(known)
        try:
            for peer in self._peers.all():
                parts += self._peers.inventory(peer, save.namespace)
        except PeerAway:
            return False
        held = {seal.index: seal.kind for seal in parts if (seal.namespace, seal.step, seal.save) == save}
        heads = [index for index, kind in held.items() if kind is ShardKind.METADATA]
        return not any(held.keys() >= set(range(head)) for head in heads)

    def _inventories(self, namespace: str) -> Iterator[tuple[str, tuple[Seal, ...]]]:
        for peer in self._peers.all():
            try:
                yield peer.node, self._peers.inventory(peer, namespace)
            except PeerAway as away:
                log.info("%s", away)
