"""Durable steps on their way from a node's memory into the object store: in order, bounded by the memory budget, and through outages.

Each shard is put by the node that wrote it while that node lives, else by the first of those who hold a replica. A step that waits is kept in memory
while there is room (``protected``); when room is needed the oldest is given up, and said, but never the newest complete one: the store sees to that.
While the object store does not answer nothing but time is spent on it: one call, then a wait that doubles up to 15 s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from random import Random

from everstep.shards import Manifest, Seal, ShardKind
from everstep.tiers import CopyStatus, DurableReport, NamespacePlan, TierPlan

from . import backlog
from .backlog import Backlog, Discarded, Pending, Save
from .commit import Durable
from .heirs import Heirs
from .held import Change, Gone
from .objects import Objects, StoreAway
from .outage import Outage
from .peers import Peers
from .store import Store

log = logging.getLogger(__name__)

IDLE_S = 15.0
"""How long nothing is looked at when nothing is to be done."""
HOPELESS_S = 600.0
"""A step that has not moved for so long, while a newer one is durable, has lost a shard somewhere."""
ORDER_S = 30.0
"""How long a step that other ranks have not put yet keeps those after it from being committed before it."""
_FIRST_LOOK_S = 0.1
_MOST_LOOK_S = 5.0
_MOST_LOOK_IN_ORDER_S = 1.0
_ASKED_FROM_LOOK = 5
"""From this look on, some seconds after the first, others are asked for a metadata shard that should have been written here."""
_GRACE_S = 5.0
"""How long the writer of a shard is left alone with it before a holder of its replica looks after it."""
_PIECE = 8 << 20


class Draining:
    """``turn`` does the next thing, in the caller's thread; ``start`` has a thread of its own do it. ``now`` is in Unix seconds."""

    def __init__(
        self,
        store: Store,
        objects: Objects,
        peers: Peers,
        *,
        node: str,
        now: Callable[[], float],
        rng: Random,
        report: Callable[[DurableReport], None],
        pace_bytes_per_s: float | None = None,
    ) -> None:
        self._store, self._objects = store, objects
        self._heirs = Heirs(peers, node=node)
        self._node, self._now, self._report = node, now, report
        self._stopped = threading.Event()
        self._durable = Durable(objects, pieces=None if pace_bytes_per_s is None else self._paced(pace_bytes_per_s))
        self._outage = Outage(rng)
        self._news = threading.Condition()
        self._is_woken = False
        self._plans: dict[str, NamespacePlan] = {}
        self._pending: dict[Save, Pending] = {}
        self._manifests: dict[tuple[str, int], Manifest] = {}
        self._newest: dict[str, tuple[int, float]] = {}
        self._learned: set[str] = set()
        self._discarded: dict[str, Discarded] = {}
        self._to_supersede: dict[str, Discarded] = {}
        self._given_up: set[Save] = set()
        self._note: str | None = None
        self._thread: threading.Thread | None = None
        store.watch(self._changed)

    def know(self, plan: TierPlan) -> None:
        with self._news:
            self._plans = {one.name: one for one in plan.namespaces}
            if self._objects.is_out and not plan.is_store_out:
                self._outage.hurry()
            self._objects.is_out = plan.is_store_out
        self._wake()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="everstep-drain", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """What is under way is finished first, or fails by its own time-out."""
        self._stopped.set()
        self._wake()
        if self._thread is not None:
            self._thread.join()
        self._durable.close()

    # ------------------------------------------------------------------------------------------------ what others ask

    def backlog(self) -> Backlog:
        waiting = [seal for save, seals in self._wanted().items() for seal in self._mine(save, seals)]
        with self._news:
            return Backlog(
                nbytes=sum(seal.size for seal in waiting),
                waiting_since=min((seal.written_at for seal in waiting), default=None),
                outage=self._outage.words("the object store"),
                given_up=len(self._given_up),
                note=self._note,
            )

    def protected(self, namespace: str) -> frozenset[int]:
        """Steps that memory retention leaves alone as long as there is room: somebody still has to put a shard of them that is held here."""
        return frozenset(
            save.step for save, seals in self._wanted().items() if save.namespace == namespace and self._holds(save, seals)
        )

    def has_left(self, namespace: str) -> bool:
        """Whether anything of a namespace still has to be made durable from here."""
        return bool(self.protected(namespace))

    def newest(self, namespace: str) -> tuple[int, float] | None:
        """The newest durable step, and when it was committed in Unix seconds; None: there is none, or the store has not been asked yet."""
        with self._news:
            return self._newest.get(namespace)

    def wait(self, namespace: str, step: int, seconds: float) -> bool:
        """Whether a step is durable, once it is, or after so long."""
        with self._news:
            if self._news.wait_for(lambda: (namespace, step) in self._manifests, seconds):
                return True
        try:
            return self._objects.is_there and self._durable.manifest(namespace, step) is not None
        except StoreAway:
            return False

    def supersede(self, namespace: str, after: int) -> tuple[int, ...]:
        """Training goes on from ``after``: durable steps above it are moved away, and what waits of them is not drained any more.

        Raises:
            StoreAway: the object store does not answer; it is done as soon as it does.
        """
        discarded = Discarded(after, self._now())
        with self._news:
            self._discarded[namespace] = self._to_supersede[namespace] = discarded
        return self._supersede(namespace, discarded)

    # ------------------------------------------------------------------------------------------------ one thing at a time

    def turn(self) -> float:
        """Does the next thing; returns after how many seconds the one after it is due."""
        now = self._now()
        waiting = self._wanted()
        wait_s = self._outage.wait_s(now)
        if wait_s or not self._objects.is_there:
            return wait_s or IDLE_S
        try:
            delay_s = self._act(waiting, now)
        except StoreAway as away:
            if self._outage.since is None:
                log.warning("the object store does not answer, what is to be durable waits in memory: %s", away)
            with self._news:
                self._outage.failed(str(away), now)
            return self._outage.wait_s(now)
        if delay_s == 0.0 and self._outage.since is not None:
            log.warning("the object store answers again")
            with self._news:
                self._outage.succeeded()
                for pending in self._pending.values():
                    pending.moved(now)
        return delay_s

    def _act(self, waiting: dict[Save, tuple[Seal, ...]], now: float) -> float:
        for namespace, discarded in list(self._to_supersede.items()):
            self._supersede(namespace, discarded)
            return 0.0
        for namespace in self._plans.keys() - self._learned:
            self._learn(namespace)
            return 0.0
        due = [now + IDLE_S]
        held_up: set[str] = set()
        for save, seals in waiting.items():
            pending = self._of(save)
            seal = next(self._mine(save, seals), None)
            if self._is_over(save) or (seal is not None and backlog.is_in_rank_0(seal) and save.namespace in held_up):
                continue
            if seal is not None and (pending.is_free or not backlog.is_in_rank_0(seal)):
                self._put(save, pending, seal)
                return 0.0
            if pending.next_at <= now:
                self._look(save, pending, seals, seal)
                return 0.0
            due.append(pending.next_at)
            if seal is not None and now < pending.moved_at + ORDER_S:
                held_up.add(save.namespace)
        if self._outage.since is not None:
            self._objects.list("probe/")  # nothing waits any more that would find out whether the store is back
            return 0.0
        return max(0.0, min(due) - now)

    def _put(self, save: Save, pending: Pending, seal: Seal) -> None:
        """One shard with its seal, and the manifest if this was the last one. Its bytes are checked first: what memory has lost is not made durable."""
        if not self._store.verify(seal):
            return
        try:
            with self._store.read(seal) as reading:
                manifest = self._durable.put(seal, reading.view)
                reading.check()
        except Gone:
            return
        with self._news:
            pending.put.add(seal.index)
            pending.moved(self._now())
        if manifest is None:
            head = seal if seal.kind is ShardKind.METADATA else self._durable.head(save.namespace, save.step)
            manifest = self._commit(save, pending, head)
        if manifest is not None:
            self._is_durable(manifest)

    def _look(self, save: Save, pending: Pending, seals: tuple[Seal, ...], left: Seal | None) -> None:
        """What have the others done meanwhile? ``left`` is what this node still has to put: rank 0's, for which all others are waited for."""
        before = len(pending.others)
        manifest = self._durable.manifest(save.namespace, save.step)
        if manifest is not None and manifest.save == save.save:
            self._is_durable(manifest)
            return
        if left is not None:
            head = self._head(save, seals, is_asked_for=pending.looks >= _ASKED_FROM_LOOK)
            pending.is_free = head is not None and self._durable.lacking(head, pending.others, without=0) is None
        else:
            manifest = self._commit(save, pending, self._durable.head(save.namespace, save.step))
            if manifest is not None:
                self._is_durable(manifest)
                return
        self._inherit(pending, seals)
        if pending.is_free or len(pending.others) > before:
            pending.moved(self._now())
        self._give_up_if_hopeless(save, pending)
        is_waited_for = left is not None and self._now() < pending.moved_at + ORDER_S
        most_s = _MOST_LOOK_IN_ORDER_S if is_waited_for else _MOST_LOOK_S
        pending.look_again(self._now(), first_s=_FIRST_LOOK_S, most_s=most_s)

    def _commit(self, save: Save, pending: Pending, head: Seal | None) -> Manifest | None:
        if head is None or head.save != save.save:
            return None
        return self._durable.commit(head, pending.others, self._now())

    def _head(self, save: Save, seals: Iterable[Seal], *, is_asked_for: bool) -> Seal | None:
        """The seal of a save's metadata: held here, where rank 0 is; else somewhere."""
        elsewhere = self._heirs.elsewhere(save) if is_asked_for else iter(())
        return next((seal for seal in (*seals, *elsewhere) if seal.kind is ShardKind.METADATA), None)

    def _inherit(self, pending: Pending, seals: Iterable[Seal]) -> None:
        """Takes on what its writer cannot put any more."""
        orphans = [seal for seal in seals if seal.origin != self._node and seal.stamp not in pending.inherited]
        if orphans and self._now() >= pending.since + _GRACE_S:
            pending.inherited |= self._heirs.ours(orphans)

    def _supersede(self, namespace: str, discarded: Discarded) -> tuple[int, ...]:
        gone = []
        for step in (step for step in self._durable.steps(namespace) if step > discarded.after):
            manifest = self._durable.manifest(namespace, step)
            if manifest is not None and manifest.committed_at <= discarded.at:
                self._durable.supersede(manifest)
                gone.append(step)
        with self._news:
            self._learned.discard(namespace)
            self._newest.pop(namespace, None)
            self._manifests = {key: one for key, one in self._manifests.items() if key[0] != namespace or key[1] not in gone}
            if self._to_supersede.get(namespace) == discarded:
                del self._to_supersede[namespace]
        return tuple(gone)

    def _learn(self, namespace: str) -> None:
        """What was durable before this process began: one list, and the newest manifest."""
        steps = self._durable.steps(namespace)
        manifest = self._durable.manifest(namespace, steps[-1]) if steps else None
        with self._news:
            self._learned.add(namespace)
            if manifest is not None:
                self._newest[namespace] = (manifest.step, manifest.committed_at)

    # ------------------------------------------------------------------------------------------------ what is known

    def _wanted(self) -> dict[Save, tuple[Seal, ...]]:
        """What is held here and belongs into the store, with a ``Pending`` for each; what is known of others is forgotten."""
        with self._news:
            plans, discarded = self._plans, dict(self._discarded)
        found = backlog.wanted(self._store.seals(), plans, discarded)
        now = self._now()
        with self._news:
            pending = {}
            for save, seals in found.items():
                grace_s = 0.0 if any(seal.origin == self._node for seal in seals) else _GRACE_S
                pending[save] = self._pending.get(save) or Pending(since=now, next_at=now + grace_s, moved_at=now)
            self._pending = pending
            steps = {(save.namespace, save.step) for save in found}
            self._manifests = {step: one for step, one in self._manifests.items() if step in steps}
        return found

    def _of(self, save: Save) -> Pending:
        """Another thread may have forgotten it meanwhile, if its last shard here has gone."""
        now = self._now()
        return self._pending.get(save) or Pending(since=now, next_at=now, moved_at=now)

    def _mine(self, save: Save, seals: Iterable[Seal]) -> Iterator[Seal]:
        """What this node has to put, and has not."""
        if self._is_over(save):
            return
        pending = self._of(save)
        for seal in seals:
            if seal.index not in pending.put and (seal.origin == self._node or seal.stamp in pending.inherited):
                yield seal

    def _holds(self, save: Save, seals: Iterable[Seal]) -> bool:
        return not self._is_over(save) and any(seal.index not in self._of(save).put for seal in seals)

    def _is_over(self, save: Save) -> bool:
        manifest = self._manifests.get((save.namespace, save.step))
        return save in self._given_up or (manifest is not None and manifest.save == save.save)

    def _is_durable(self, manifest: Manifest) -> None:
        namespace, step = manifest.namespace, manifest.step
        with self._news:
            is_new = (namespace, step) not in self._manifests
            self._manifests[namespace, step] = manifest
            if step >= self._newest.get(namespace, (-1, 0.0))[0]:
                self._newest[namespace] = (step, manifest.committed_at)
            self._news.notify_all()
        if is_new and self._store.find(namespace, manifest.world_size, step, manifest.save) is not None:
            self._report(
                DurableReport(namespace, step, manifest.world_size, manifest.nbytes, manifest.committed_at, save=manifest.save)
            )

    def _give_up_if_hopeless(self, save: Save, pending: Pending) -> None:
        newest = self.newest(save.namespace)
        if newest is not None and newest[0] > save.step and self._now() - pending.moved_at > HOPELESS_S:
            self._give_up(save, "a shard of it was lost before it was put, and a newer step is durable")

    def _give_up(self, save: Save, why: str) -> None:
        with self._news:
            if save in self._given_up:
                return
            self._given_up.add(save)
            self._note = f"step {save.step} of namespace {save.namespace} will not be durable: {why}"
        log.warning("%s", self._note)

    def _changed(self, change: Change) -> None:
        seal = change.seal
        save = Save(seal.namespace, seal.step, seal.save)
        pending = self._pending.get(save)
        if pending is not None and change.status is CopyStatus.SEALED:
            pending.moved(self._now())
        if pending is not None and change.status is CopyStatus.DROPPED and self._is_missed(save, seal):
            self._give_up(save, f"shard {seal.index} went before it was put: {change.why}")
        self._wake()

    def _is_missed(self, save: Save, seal: Seal) -> bool:
        """Whether a shard that has gone was still to be put. One of which there is another save by now was not."""
        others = any(one[:2] == save[:2] and one != save for one in list(self._pending))
        return not others and bool(backlog.wanted([seal], self._plans, self._discarded)) and any(self._mine(save, [seal]))

    # ------------------------------------------------------------------------------------------------ its thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            delay_s = self.turn()
            with self._news:
                self._news.wait_for(lambda: self._is_woken, delay_s)
                self._is_woken = False

    def _wake(self) -> None:
        with self._news:
            self._is_woken = True
            self._news.notify_all()

    def _paced(self, bytes_per_s: float) -> Callable[[memoryview], Iterator[memoryview]]:
        def pieces(body: memoryview) -> Iterator[memoryview]:
            for start in range(0, body.nbytes, _PIECE):
                piece = body[start : start + _PIECE]
                yield piece
                self._stopped.wait(piece.nbytes / bytes_per_s)

        return pieces
