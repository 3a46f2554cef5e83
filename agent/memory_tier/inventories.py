"""All seals of a namespace that can be had now: this node's own, and what the other nodes say that they hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial

from agent.memory_tier.asking import Asking
from agent.memory_tier.peers import Peers
from agent.memory_tier.store import Store
from everstep.shards import Seal
from everstep.tiers import TierPeer

Held = tuple[TierPeer | None, Seal]
"""A seal and who holds it: None is this node."""


@dataclass(frozen=True)
class Patience:
    """Seconds. ``fresh_s`` is how old an answer may be for a loader, ``cached_s`` for retention; nobody is waited for longer than ``answer_s``.

    With more than ``few`` peers an answer may be ``per_peer_s`` old for each of them, as far as retention goes: so a node asks as often as before, however
    many there are, and hears of what becomes complete meanwhile by announcement.

    Who takes longer than ``quick_s`` to fail is left alone for ``away_s``; who fails at once costs nothing and is asked again each time.
    """

    fresh_s: float = 0.1
    cached_s: float = 1.0
    answer_s: float = 3.0
    quick_s: float = 0.5
    away_s: float = 5.0
    few: int = 16
    per_peer_s: float = 0.05

    def retention_s(self, peers: int) -> float:
        """How old an answer may be for retention, on a node with so many peers."""
        return self.cached_s if peers <= self.few else max(self.cached_s, peers * self.per_peer_s)


@dataclass
class _Heard:
    at: float = float("-inf")
    seals: Mapping[TierPeer, tuple[Seal, ...]] = field(default_factory=dict)
    asking: threading.Lock = field(default_factory=threading.Lock)


class Inventories:
    """Thread-safe. ``is_open`` tells namespaces that clients without a token own; ``clock`` is monotonic.

    What ``is_discarded`` was given up by training that went back: whoever still holds it was away then.

    In a job's namespace seals without the name of a save do not count: only who has no token writes such.
    """

    def __init__(
        self,
        *,
        store: Store,
        peers: Peers,
        asking: Asking,
        is_open: Callable[[str], bool],
        is_discarded: Callable[[Seal], bool],
        clock: Callable[[], float],
        patience: Patience,
    ) -> None:
        self._store = store
        self._peers = peers
        self._asking = asking
        self._is_open = is_open
        self._is_discarded = is_discarded
        self._clock = clock
        self._patience = patience
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}
        self._away: dict[str, float] = {}

    def held(self, namespace: str, *, fresh_s: float) -> list[Held]:
        """``fresh_s`` is how old others' answers may be, in seconds; what is here is as it is now."""
        others = self._of_others(namespace, fresh_s)
        held: list[Held] = [(None, seal) for seal in self._store.seals(namespace)]
        held += [(peer, seal) for peer, seals in others.items() for seal in seals]
        held = [(holder, seal) for holder, seal in held if not self._is_discarded(seal)]
        return held if self._is_open(namespace) else [(holder, seal) for holder, seal in held if seal.save]

    def forget(self, namespace: str | None = None) -> None:
        """What was heard may be wrong by now; without a name, of everything and everybody."""
        with self._lock:
            if namespace is None:
                self._away.clear()
            for name, heard in self._heard.items():
                if namespace in {None, name}:
                    heard.at = float("-inf")

    def _of_others(self, namespace: str, fresh_s: float) -> Mapping[TierPeer, tuple[Seal, ...]]:
        peers = self._peers.all()
        if not peers:
            return {}
        with self._lock:
            heard = self._heard.setdefault(namespace, _Heard())
        oldest = self._clock() - fresh_s
        with heard.asking:  # who comes while somebody asks the same takes that answer, unless it is too old for him
            if heard.at < oldest or not {*heard.seals} <= {*peers}:
                began = self._clock()
                heard.seals = self._ask(peers, namespace)
                heard.at = began
            return heard.seals

    def _ask(self, peers: Iterable[TierPeer], namespace: str) -> dict[TierPeer, tuple[Seal, ...]]:
        began = self._clock()
        with self._lock:
            able = [peer for peer in peers if self._away.get(peer.node, began) <= began]
        asked = {
            peer: self._asking.begin((peer.node, namespace), partial(self._peers.inventory, peer, namespace))
            for peer in able
            if not self._asking.is_under_way((peer.node, namespace))
        }
        wait(asked.values(), timeout=self._patience.answer_s)
        was_slow = self._clock() - began > self._patience.quick_s
        answers = {}
        for peer, answer in asked.items():
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answers[peer] = tuple(seal for seal in answer.result() if seal.namespace == namespace)
            elif was_slow:
                with self._lock:
                    self._away[peer.node] = self._clock() + self._patience.away_s
        return answers
