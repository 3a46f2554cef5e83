"""Replicas of a node's shards on other nodes: made when a shard is sealed, and made anew when a node is lost or a copy turns out corrupt.

What is to be done is derived each time from what is held, what others are known to hold, and the plan: so work that retention has overtaken is no work
any more, the newest step goes first, and nothing has to be remembered over a restart. A peer that does not answer is tried again after waits that
double; after ``AWAY_S`` another one takes its place, before the control plane has said that it is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from random import Random

from everstep.shards import Seal
from everstep.tiers import CopyStatus, NamespacePlan, TierPeer, TierPlan

from .copies import Copies, Push, Shard, shard_of
from .held import Change, Corrupt, Gone, replica_of
from .outage import Outage
from .peers import PeerAway, PeerRefused, Peers
from .placing import Place, order
from .store import NoRoom, Store

log = logging.getLogger(__name__)

AWAY_S = 10.0
"""After so long without an answer a peer's copies count as lost."""
LOOK_S = 15.0
"""How often those who hold our replicas are asked whether they still do."""
FULL_S = 5.0
"""How long a peer that had no room is not asked again."""
MOST_AWAY_S = 5.0
_MOST_REPAIRS = 8
_WORKERS = 2
_LOOKS_AT_ONCE = 8


@dataclass(frozen=True)
class Lag:
    """Shards that have fewer copies than they should, the oldest since ``since`` (Unix seconds; None: all have theirs)."""

    shards: int = 0
    nbytes: int = 0
    since: float | None = None


class Replication:
    """``turn`` does the next thing in the caller's thread; ``start`` has threads of its own do it. ``now`` is in Unix seconds."""

    def __init__(self, store: Store, peers: Peers, *, node: str, now: Callable[[], float], rng: Random) -> None:
        self._store, self._peers = store, peers
        self._node, self._now, self._rng = node, now, rng
        self._news = threading.Condition()
        self._changes = 0
        self._is_stopped = False
        self._zone: str | None = None
        self._plans: dict[str, NamespacePlan] = {}
        self._ended: frozenset[str] = frozenset()
        self._nodes: dict[str, TierPeer] = {}
        self._copies = Copies(node)
        self._away: dict[str, Outage] = {}
        self._full: dict[str, float] = {}
        self._to_look: set[str] = set()
        self._next_look_at = now() + LOOK_S
        self._repairs: dict[Shard, tuple[float, int, Seal]] = {}
        self._busy: set[tuple[Shard, str]] = set()
        self._looks = ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="everstep-inventory")
        self._threads: list[threading.Thread] = []
        store.watch(self._changed)

    def know(self, plan: TierPlan) -> None:
        """``Peers`` is told first. Nodes that the plan has no longer are lost with what they held."""
        with self._news:
            nodes = {peer.node: peer for peer in plan.peers}
            gone, come = self._nodes.keys() - nodes.keys(), nodes.keys() - self._nodes.keys()
            for node in gone:
                self._copies.lost(node)
                self._away.pop(node, None)
            self._to_look = (self._to_look | come | (nodes.keys() if gone else set())) & nodes.keys()
            self._zone, self._nodes = plan.zone, nodes
            self._plans = {one.name: one for one in plan.namespaces}
            self._ended = frozenset(plan.ended)
            self._told()

    def start(self) -> None:
        for number in range(_WORKERS):
            thread = threading.Thread(target=self._run, name=f"everstep-replicate-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """A push under way is finished first, or ends by its time-out."""
        with self._news:
            self._is_stopped = True
            self._told()
        for thread in self._threads:
            thread.join()
        self._looks.shutdown(cancel_futures=True)

    # ------------------------------------------------------------------------------------------------ what others ask

    def copies(self, seal: Seal) -> int:
        """How many nodes are known to hold a shard of ours, this one included."""
        with self._news:
            return 1 + len(self._copies.elsewhere(seal, self._alive()))

    def wait(self, namespace: str, step: int, replicas: int, seconds: float) -> int:
        """How many copies the shard of a step that has fewest has, of those written here: when it has ``replicas``, or after so long."""
        found = 0

        def is_reached() -> bool:
            nonlocal found
            written = [seal for seal in self._store.seals(namespace) if seal.step == step and seal.origin == self._node]
            alive = self._alive()
            found = min((1 + len(self._copies.elsewhere(seal, alive)) for seal in written), default=0)
            return found >= replicas

        with self._news:
            self._news.wait_for(is_reached, seconds)
        return found

    def lag(self) -> Lag:
        with self._news:
            alive = self._alive()
            short = [
                seal
                for seal in self._store.seals()
                if self._copies.is_ours(seal, alive) and len(self._copies.elsewhere(seal, alive)) < self._wanted(seal.namespace)
            ]
        return Lag(len(short), sum(seal.size for seal in short), min((seal.written_at for seal in short), default=None))

    # ------------------------------------------------------------------------------------------------ one thing at a time

    def turn(self) -> float:
        """Does the next thing; returns after how many seconds the one after it is due."""
        now = self._now()
        with self._news:
            ours = {shard_of(seal) for seal in self._store.seals()}
            self._copies.keep_only(ours)
            looks, self._to_look = self._due_looks(now), set()
            repair = None if looks else self._due_repair(now)
            push = None if looks or repair else self._due_push(now)
            if push is not None:
                self._busy.add((shard_of(push.seal), push.node))
        if looks:
            self._look(looks, ours)
        elif repair is not None:
            self._repair(repair)
        elif push is not None:
            self._push(push)
        else:
            return self._idle_s(now)
        return 0.0

    def _push(self, push: Push) -> None:
        """Makes one replica. The bytes are read under a lock that keeps the segment from being used again; what has gone meanwhile is left."""
        seal, shard = push.seal, shard_of(push.seal)
        peer = self._nodes.get(push.node)
        try:
            if peer is not None:
                with self._store.read(seal) as reading:
                    self._peers.push(peer, seal, reading.view)
                    reading.check()
                self._answered(peer, made=shard)
        except Gone:
            return
        except PeerRefused as refused:
            self._refused(refused, seal)
        except PeerAway as away:
            self._failed(away)
        finally:
            with self._news:
                self._busy.discard((shard, push.node))
                self._told()

    def _refused(self, refused: PeerRefused, seal: Seal) -> None:
        """It answers, so it is there. When it found other bytes than promised, ours are looked at: the wire is the less likely place to lose a bit."""
        log.info("%s", refused)
        self._answered(refused.peer)
        with self._news:
            self._full[refused.peer.node] = self._now() + FULL_S
        if refused.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            self._store.verify(seal)

    def _repair(self, seal: Seal) -> None:
        """A corrupt copy is fetched anew from whoever has a good one."""
        for peer in self._holders(seal):
            try:
                if self._fetch(peer, seal):
                    log.info(
                        "shard %d of step %d was corrupt here and has come back from node %s", seal.index, seal.step, peer.node
                    )
                    return
            except PeerRefused as refused:
                log.info("%s", refused)
            except PeerAway as away:
                self._failed(away)
        self._repair_later(seal)

    def _fetch(self, peer: TierPeer, seal: Seal) -> bool:
        """Raises PeerAway."""
        try:
            segment = self._store.take(seal.namespace, seal.index, seal.step, seal.size)
        except NoRoom as refused:
            log.info("%s", refused)
            return False
        try:
            self._peers.fetch(peer, seal, segment.body[: seal.size])
            self._store.seal(segment, replica_of(seal))
        except Corrupt as corrupt:
            self._store.abandon(segment)
            log.warning("node %s sent bytes that are not those of the seal: %s", peer.node, corrupt)
            return False
        except BaseException:
            self._store.abandon(segment)
            raise
        return True

    def _look(self, nodes: Iterable[str], ours: set[Shard]) -> None:
        peers = [self._nodes[node] for node in nodes if node in self._nodes]
        for peer, found in zip(peers, self._looks.map(self._inventory, peers), strict=True):
            if isinstance(found, PeerAway):
                self._failed(found)
                continue
            self._answered(peer)
            with self._news:
                self._copies.saw(peer.node, found, ours)
                self._told()

    def _inventory(self, peer: TierPeer) -> tuple[Seal, ...] | PeerAway:
        try:
            return self._peers.inventory(peer)
        except PeerAway as away:
            return away

    def _holders(self, seal: Seal) -> list[TierPeer]:
        """Those that are known to hold a shard, and then everybody else: what is corrupt here may never have been pushed from here."""
        with self._news:
            alive = self._alive()
            known = self._copies.elsewhere(seal, alive)
            return sorted((self._nodes[node] for node in alive), key=lambda peer: (peer.node not in known, peer.zone != self._zone))

    # ------------------------------------------------------------------------------------------------ what is due; under the lock

    def _alive(self) -> set[str]:
        now = self._now()
        return {node for node in self._nodes if not self._is_long_away(node, now)}

    def _is_long_away(self, node: str, now: float) -> bool:
        away = self._away.get(node)
        return away is not None and away.since is not None and now - away.since > AWAY_S

    def _due_looks(self, now: float) -> list[str]:
        if now >= self._next_look_at:
            self._next_look_at = now + LOOK_S
            seals = self._store.seals()
            self._to_look |= {node for seal in seals for node in self._copies.elsewhere(seal, self._nodes)} | self._away.keys()
        return [node for node in self._to_look if node in self._nodes]

    def _due_repair(self, now: float) -> Seal | None:
        for shard, (at, tries, seal) in self._repairs.items():
            if at <= now:
                self._repairs[shard] = (now + min(60.0, 2.0**tries), tries + 1, seal)
                return seal
        return None

    def _due_push(self, now: float) -> Push | None:
        alive = self._alive()
        askable = {node for node in alive if self._full.get(node, 0.0) <= now}
        by_namespace: dict[str, list[Seal]] = {}
        for seal in self._store.seals():
            by_namespace.setdefault(seal.namespace, []).append(seal)
        pushes: list[Push] = []
        for namespace, seals in by_namespace.items():
            wanted = self._wanted(namespace)
            places = [Place(self._node, self._zone), *(Place(peer.node, peer.zone) for peer in self._nodes.values())]
            to = [node for node in order(self._node, places, wanted) if node in askable]
            pushes += self._copies.lacking(seals, wanted, to, alive)
        pushes.sort(key=lambda push: -push.seal.written_at)
        free = (push for push in pushes if (shard_of(push.seal), push.node) not in self._busy)
        return next((push for push in free if self._may_ask(push.node, now)), None)

    def _may_ask(self, node: str, now: float) -> bool:
        away = self._away.get(node)
        return away is None or not away.wait_s(now)

    def _wanted(self, namespace: str) -> int:
        """How many other nodes are to hold a copy. A namespace that no plan names is a foreign client's, and outlives a node as others do by default."""
        if namespace in self._ended:
            return 0
        plan = self._plans.get(namespace)
        return (NamespacePlan.replicas if plan is None else max(1, plan.replicas)) - 1

    def _idle_s(self, now: float) -> float:
        with self._news:
            due = [self._next_look_at, *(at for at, _, _ in self._repairs.values())]
            due += [away.next_at for away in self._away.values() if away.next_at > now]
            due += [at for at in self._full.values() if at > now]
        return max(0.01, min(due) - now)

    # ------------------------------------------------------------------------------------------------ what has happened

    def _changed(self, change: Change) -> None:
        with self._news:
            shard = shard_of(change.seal)
            if change.status is CopyStatus.CORRUPT:
                self._repairs[shard] = (self._now(), 0, change.seal)
            else:
                self._repairs.pop(shard, None)
            if change.status is CopyStatus.SEALED and change.seal.origin not in {self._node, *self._nodes}:
                self._to_look |= self._nodes.keys()  # who else holds what nobody writes any more is not known from here
            self._told()

    def _repair_later(self, seal: Seal) -> None:
        """Nobody can give it: not for ever, since the step may be gone everywhere."""
        with self._news:
            if self._repairs.get(shard_of(seal), (0.0, 0, seal))[1] > _MOST_REPAIRS:
                log.warning(
                    "shard %d of step %d of namespace %s was corrupt and nobody has it", seal.index, seal.step, seal.namespace
                )
                self._repairs.pop(shard_of(seal), None)

    def _answered(self, peer: TierPeer, *, made: Shard | None = None) -> None:
        with self._news:
            if self._away.pop(peer.node, None) is not None:
                self._to_look.add(peer.node)
            if made is not None:
                self._copies.made(made, peer.node)

    def _failed(self, away: PeerAway) -> None:
        node, now = away.peer.node, self._now()
        with self._news:
            outage = self._away.setdefault(node, Outage(self._rng, MOST_AWAY_S))
            was_away = self._is_long_away(node, now)
            outage.failed(away.why, now)
            if self._is_long_away(node, now) and not was_away:
                log.warning("%s; others are to hold its replicas", away)

    def _told(self) -> None:
        self._changes += 1
        self._news.notify_all()

    # ------------------------------------------------------------------------------------------------ its threads

    def _run(self) -> None:
        while not self._is_stopped:
            seen = self._changes
            try:
                delay_s = self.turn()
            except Exception:
                log.exception("replication failed, trying again in %.0f s", FULL_S)
                delay_s = FULL_S
            with self._news:
                self._news.wait_for(lambda: self._is_stopped or self._changes != seen, delay_s)  # noqa: B023  (used at once)
