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
from .backlog import Backlog, Pending, Save
from .commit import Durable, Overtaken, paced
from .committed import Committed
from .discards import Discard, Discards
from .heirs import Heirs
from .held import Change, Gone
from .objects import Objects, StoreAway
from .order import Order
from .outage import Outage
from .peers import Peers
from .store import Store
from .superseding import Superseding

log = logging.getLogger(__name__)
IDLE_S = 15.0
"""How long nothing is looked at when nothing is to be done."""
HOPELESS_S, TORN_S = 600.0, 5.0
"""A step that has not moved for so long, while a newer one is durable, has lost a shard; for ``TORN_S``, if all nodes say that they lack it too."""
_FIRST_LOOK_S, _MOST_LOOK_S, _MOST_LOOK_IN_ORDER_S = 0.1, 5.0, 1.0
_ASKED_FROM_LOOK = 5
"""From this look on, some seconds after the first, others are asked for a metadata shard that should have been written here."""
_WAIT_S = 0.5
_GRACE_S = 5.0
"""How long the writer of a shard is left alone with it before a holder of its replica looks after it."""


class Draining:
    """``turn`` does the next thing, in the caller's thread; ``start`` has a thread of its own do it. ``now`` is in Unix seconds."""

    def __init__(
        self,
        store: Store,
        objects: Objects,
        peers: Peers,
        *,
        node: str,
        discards: Discards,
        now: Callable[[], float],
        rng: Random,
        report: Callable[[DurableReport], None],
        pace_bytes_per_s: float | None = None,
    ) -> None:
        self._store, self._objects = store, objects
        self._heirs = Heirs(peers, node=node)
        self._node, self._now = node, now
        self._committed = Committed(now=now, report=report)
        self._stopped = threading.Event()
        pieces = paced(pace_bytes_per_s, self._stopped.wait) if pace_bytes_per_s else None
        self._durable = Durable(objects, pieces=pieces, superseded=self._committed.superseded)
        self._discards = discards
        self._superseding = Superseding(self._durable)
        self._outage = Outage(rng)
        self._news = threading.Condition()
        self._is_woken = False
        self._plans: dict[str, NamespacePlan] = {}
        self._pending: dict[Save, Pending] = {}
        self._began_at = now()
        self._given_up: set[Save] = set()
        self._leftovers: list[Seal] = []
        self._order = Order()
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
        return self._committed.newest(namespace)

    def wait(self, namespace: str, step: int, seconds: float) -> bool:
        """Whether a step is durable, once it is, or after so long. While somebody waits, it is looked at often what other nodes have done."""
        left_s = seconds
        while not self._committed.wait(namespace, step, min(left_s, _WAIT_S)):
            left_s -= _WAIT_S
            if left_s <= 0:
                break
            self._hurry(namespace, step)
        else:
            return True
        try:
            return self._objects.is_there and self._durable.manifest(namespace, step) is not None
        except StoreAway:
            return False

    def told(self) -> tuple[DurableReport, ...]:
        """What has been reported: whoever was not there to hear it is told again."""
        return self._committed.told()

    def supersede(self, namespace: str, after: int, at: float, *, is_later: bool = False) -> tuple[int, ...]:
        """Training went back to ``after``: what was committed of steps above it until ``at`` is moved away, now or soon. ``discards`` know of it already.

        Raises:
            StoreAway: the object store does not answer; it is done as soon as it does.
        """
        discard = Discard(after, at)
        self._superseding.ask(namespace, discard, self._now())
        return () if is_later else self._superseding.carry_out(namespace, discard)

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
        asked = self._superseding.due(now)
        if asked is not None:
            self._superseding.carry_out(*asked)
            return 0.0
        unknown = next((name for name in self._plans if self._committed.newest_at_start(name) is None), None)
        if unknown is not None:
            self._learn(unknown)
            return 0.0
        due = [now + IDLE_S, self._superseding.next_at() or now + IDLE_S]
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
            if seal is not None and self._order.is_kept(save, pending, now, self.newest(save.namespace)):
                held_up.add(save.namespace)
        if self._leftovers:
            self._durable.remove(self._leftovers[0])
            del self._leftovers[0]
            return 0.0
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
        except Overtaken as overtaken:
            self._give_up(save, str(overtaken))
            return
        with self._news:
            pending.put[seal.index] = seal
            pending.moved(self._now())
        if manifest is None:
            head = seal if seal.kind is ShardKind.METADATA else self._durable.head(save.namespace, save.step)
            manifest = self._commit(save, pending, head)
        if manifest is not None:
            self._is_durable(manifest, pending)

    def _look(self, save: Save, pending: Pending, seals: tuple[Seal, ...], left: Seal | None) -> None:
        """What have the others done meanwhile? ``left`` is what this node still has to put: rank 0's, for which all others are waited for."""
        before = len(pending.others)
        manifest = self._durable.manifest(save.namespace, save.step)
        if manifest is not None and manifest.save == save.save:
            self._is_durable(manifest, pending)
            return
        if left is not None:
            head = self._head(save, seals, is_asked_for=pending.looks >= _ASKED_FROM_LOOK)
            pending.is_free = head is not None and self._durable.lacking(head, pending.others, without=0) is None
        else:
            manifest = self._commit(save, pending, self._durable.head(save.namespace, save.step))
            if manifest is not None:
                self._is_durable(manifest, pending)
                return
        self._inherit(pending, seals)
        if pending.is_free or len(pending.others) > before:
            pending.moved(self._now())
        self._give_up_if_hopeless(save, pending, seals)
        now = self._now()
        is_waited_for = left is not None and self._order.is_kept(save, pending, now, self.newest(save.namespace))
        pending.look_again(now, first_s=_FIRST_LOOK_S, most_s=_MOST_LOOK_IN_ORDER_S if is_waited_for else _MOST_LOOK_S)

    def _commit(self, save: Save, pending: Pending, head: Seal | None) -> Manifest | None:
        if head is None or head.save != save.save or self._discards.covers(head):
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

    def _learn(self, namespace: str) -> None:
        """What was durable before this process began: one list, and the newest manifest. What training went back from meanwhile goes."""
        for discard in self._discards.marks(namespace):
            self._superseding.carry_out(namespace, discard)
        steps = self._durable.steps(namespace)
        manifest = self._durable.manifest(namespace, steps[-1]) if steps else None
        self._committed.learn(namespace, manifest)

    # ------------------------------------------------------------------------------------------------ what is known

    def _wanted(self) -> dict[Save, tuple[Seal, ...]]:
        """What is held here and belongs into the store, with a ``Pending`` for each; what is known of others is forgotten."""
        with self._news:
            plans = self._plans
        found = backlog.wanted(self._store.seals(), plans, self._discards.covers)
        now = self._now()
        with self._news:
            pending = {}
            for save, seals in found.items():
                grace_s = 0.0 if any(seal.origin == self._node for seal in seals) else _GRACE_S
                known = self._pending.get(save)
                pending[save] = known or Pending(_written_at(seals), since=now, next_at=now + grace_s, moved_at=now)
            self._pending = pending
        self._committed.keep_only({(save.namespace, save.step) for save in found})
        return found

    def _of(self, save: Save) -> Pending:
        """Another thread may have forgotten it meanwhile, if its last shard here has gone."""
        now = self._now()
        return self._pending.get(save) or Pending(now, since=now, next_at=now, moved_at=now)

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
        manifest = self._committed.find(save.namespace, save.step)
        is_durable = manifest is not None and manifest.save == save.save
        return save in self._given_up or is_durable or self._was_over(save)

    def _was_over(self, save: Save) -> bool:
        """Steps are committed in order: one from before this process that is older than what was durable then has had its time, and may have been removed."""
        plan = self._plans.get(save.namespace)
        is_asked_for = plan is not None and save.step in plan.drain
        newest = self._committed.newest_at_start(save.namespace)
        is_old = newest is not None and save.step < newest and self._of(save).written_at < self._began_at
        return is_old and not is_asked_for

    def _is_durable(self, manifest: Manifest, pending: Pending) -> None:
        """Who holds the metadata, or has put it, tells of it: that is one node, or a few that say the same."""
        self._order.committed(manifest.namespace, self._now())
        held = self._store.find(manifest.namespace, manifest.world_size, manifest.step, manifest.save)
        self._committed.add(manifest, is_ours=held is not None or manifest.world_size in pending.put)

    def _give_up_if_hopeless(self, save: Save, pending: Pending, seals: tuple[Seal, ...]) -> None:
        newest = self.newest(save.namespace)
        still_s = self._now() - pending.moved_at
        if newest is None or newest[0] <= save.step or still_s <= TORN_S:
            return
        if still_s > HOPELESS_S or self._heirs.is_torn([*seals, *pending.put.values(), *pending.others.values()], save):
            self._give_up(save, "a shard of it was lost before it was put, and a newer step is durable")
            self._leftovers += pending.put.values()

    def _give_up(self, save: Save, why: str) -> None:
        with self._news:
            if save in self._given_up:
                return
            self._given_up.add(save)
            self._note = f"step {save.step} of namespace {save.namespace} is given up before it was durable: {why}"
        log.warning("%s", self._note)

    def _hurry(self, namespace: str, step: int) -> None:
        for save, pending in list(self._pending.items()):
            if save[:2] == (namespace, step):
                pending.next_at = min(pending.next_at, self._now())
        self._wake()

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
        return not others and bool(backlog.wanted([seal], self._plans, self._discards.covers)) and any(self._mine(save, [seal]))

    # ------------------------------------------------------------------------------------------------ its thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                delay_s = self.turn()
            except Exception:
                log.exception("draining failed, trying again in %.0f s", IDLE_S)
                delay_s = IDLE_S
            with self._news:
                self._news.wait_for(lambda: self._is_woken, delay_s)
                self._is_woken = False

    def _wake(self) -> None:
        with self._news:
            self._is_woken = True
            self._news.notify_all()


def _written_at(seals: Iterable[Seal]) -> float:
    return max(seal.written_at for seal in seals)
