"""The shards that a node holds in memory. Nothing else creates, renames or unlinks a file below these folders.

    <folder>/ns/<namespace>/<step>/<index>-<segment>         a segment: a page with its stamp, then the shard's bytes
    <folder>/ns/<namespace>/<step>/<index>-<segment>.json    its seal
    <folder>/spare/<segment>                                 a segment that holds nothing, or is being filled

The order of every change is what SIGKILL at any moment cannot break:

- *Sealing*: bytes · hash · stamp · rename into the step · rename of the seal, which is the commit · only then the shard that it replaces goes.
- *Retiring*: the seal is unlinked · the segment is renamed to ``spare`` · the step's folder goes. Its bytes are touched by whoever takes it next.
- *Adopting*: a seal counts if it can be read and its stamp and length are those of the segment; the rest is swept to ``spare``. Nothing that has been
  adopted is served before its bytes have been hashed.

The same shard may be there once for each save, so that writing a step again destroys nothing before the new save of it is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from threading import RLock

from agent.memory_tier import adoption, hashing, ids, retention, seals, segments
from agent.memory_tier.budget import Budget, NoRoom
from agent.memory_tier.held import Change, Corrupt, Gone, Held, Reading, Sealing, Usage, guarded, sealed, stamp_fits
from agent.memory_tier.pool import Pool
from agent.memory_tier.retention import Kept
from agent.memory_tier.segments import Segment
from everstep.shards import Seal
from everstep.tiers import CopyStatus

__all__ = ["Budget", "Change", "Corrupt", "Gone", "NoRoom", "Reading", "Sealing", "Segment", "Store", "Usage"]

_LEASE_PATIENCE_S = 5.0


class Store:
    """Thread-safe. ``node`` signs what is written here first; ``now`` is in Unix seconds.

    ``adopt`` comes first. Bytes are hashed, and segments are made, outside the lock: one shard does not wait for another.
    """

    def __init__(
        self,
        folder: Path,
        *,
        node: str,
        budget: Budget,
        now: Callable[[], float],
        granule: int = segments.PAGE_BYTES,
    ) -> None:
        self.budget = budget
        self.corruptions = 0
        self._shards = folder / "ns"
        self._node = node
        self._now = now
        self._lock = RLock()
        self._pool = Pool(folder / "spare", budget, granule=granule)
        self._held: dict[str, dict[str, Held]] = {}
        self._kept: dict[str, Kept] = {}
        self._listeners: list[Callable[[Change], None]] = []

    # ------------------------------------------------------------ at start

    def adopt(self) -> None:
        """Takes over what is there. Raises OSError when the folder cannot be used."""
        with self._lock:
            adoption.lost(self._shards, self._pool, ())
            for held in adoption.shards(self._shards, self._pool):
                self.budget.adopt(held.segment.nbytes)
                self._held.setdefault(held.seal.namespace, {})[held.seal.stamp] = held
            adoption.spares(self._pool)
            self.budget.adopt(self._pool.nbytes)

    def heal(self) -> tuple[Seal, ...]:
        """Gives up what somebody has deleted, or cut off, under this process: it is fetched anew from whoever has it. Raises OSError."""
        with self._lock:
            gone = adoption.lost(self._shards, self._pool, self._all())
            for seal in gone:
                self._retire(seal)
        self._tell(*(Change(seal, CopyStatus.CORRUPT, "its file was deleted or cut off") for seal in gone))
        return tuple(gone)

    def unverified(self) -> tuple[Seal, ...]:
        """What has been adopted and not been hashed yet, youngest first."""
        with self._lock:
            return tuple(sorted((one.seal for one in self._all() if not one.is_verified), key=lambda seal: -seal.written_at))

    # ------------------------------------------------------------ writing

    def reserve(self, namespace: str, index: int, nbytes: int, count: int) -> tuple[int, str | None]:
        """Sees that a shard has so many segments to go round, those that hold its steps included.

        Returns how many of them hold nothing and stand ready, and why there are fewer than asked in all.
        """
        claim = (namespace, index)
        with self._lock:
            mine = [held.segment for held in self._held.get(namespace, {}).values() if held.seal.index == index]
            ready = self._pool.claimed(nbytes, claim)
            missing = count - ready - sum(segment.capacity >= nbytes for segment in mine)
            for segment in mine:
                segment.claim = claim
        for _ in range(missing):
            try:
                segment = self._fresh(nbytes, claim)
            except NoRoom as refused:
                return ready, str(refused)
            segment.claim = claim
            self.abandon(segment)
            ready += 1
        return ready, None

    def unclaim(self, namespace: str, index: int) -> None:
        """Whoever reserved for this shard is gone: what it does not hold is anybody's."""
        with self._lock:
            self._pool.unclaim(namespace, index)
            for held in self._held.get(namespace, {}).values():
                if held.seal.index == index:
                    held.segment.claim = None

    def take(self, namespace: str, index: int, step: int, nbytes: int, *, is_last_try: bool = True) -> Segment:
        """A segment to be filled, without a stamp; to be sealed or abandoned. Raises NoRoom, after older steps have given way; counted at the last try."""
        claim = (namespace, index)
        while True:
            with self._lock:
                segment = self._pool.pick(nbytes, claim)
            try:
                segment = segment or self._pool.create(nbytes)
            except NoRoom as refused:
                segment = self._squeeze(namespace, claim, nbytes)
                if segment is None:
                    self.budget.count_refusal(1 if is_last_try else 0)
                    message = f"no memory for shard {index} of step {step} of namespace {namespace}: {refused}"
                    raise NoRoom(message) from refused
            if segment is not None:
                return segment

    def seal(self, segment: Segment, asked: Sealing, *, begun: hashing.Digest | None = None) -> Seal:
        """Hashes what has been written, but for what ``begun`` has, and commits it. Raises Corrupt; then, as after any error, the segment is still the caller's to abandon."""
        if asked.nbytes > segment.capacity:
            message = f"{asked.nbytes} bytes cannot be in a segment of {segment.capacity}"
            raise ValueError(message)
        found = hashing.digest(segment.body[: asked.nbytes], begun=begun)
        if asked.digest is not None and asked.digest != found:
            message = f"shard {asked.index} of step {asked.step}: digest {found}, promised was {asked.digest}"
            raise Corrupt(message)
        seal = seals.checked(sealed(asked, found, f"{segment.id}.{ids.fresh()}", node=self._node, now=self._now()))
        with self._lock:
            younger = self._same(seal, than=seal.written_at)
            if younger is not None:
                self._pool.put(segment)
                return younger.seal
            self._commit(segment, seal)
        self._tell(Change(seal, CopyStatus.SEALED, "sealed"))
        return seal

    def abandon(self, segment: Segment) -> None:
        """Takes back a segment that was not sealed."""
        with self._lock:
            self._pool.put(segment)

    # ------------------------------------------------------------ reading

    def find(self, namespace: str, index: int, step: int, save: str | None = None) -> Seal | None:
        """The youngest, of any save or of one. What was adopted is hashed now, if it has not been."""
        while True:
            with self._lock:
                fitting = [
                    held
                    for held in self._held.get(namespace, {}).values()
                    if held.seal.index == index and held.seal.step == step and save in {None, held.seal.save}
                ]
            if not fitting:
                return None
            youngest = max(fitting, key=lambda held: held.seal.written_at)
            if youngest.is_verified or self.verify(youngest.seal):
                return youngest.seal

    def read(self, seal: Seal) -> Reading:
        """A context manager. Raises Gone."""
        with self._lock:
            held = self._get(seal)
            held.segment.readers += 1
        return Reading(held, lambda: self._release(held.segment))

    def lease(self, seal: Seal) -> int:
        """A descriptor of its own with a shared lock, for another process to read by. Raises Gone; also while its writer does not let go of it."""
        with self.read(seal):
            with self._lock:
                descriptor = self._get(seal).segment.open_descriptor(is_writable=False)
            if not segments.share(descriptor, patience_s=_LEASE_PATIENCE_S):
                os.close(descriptor)
                message = f"shard {seal.index} of step {seal.step} is still locked by the process that wrote it"
                raise Gone(message)
        return descriptor

    def seals(self, namespace: str | None = None) -> tuple[Seal, ...]:
        """What can be had from here now, verified."""
        with self._lock:
            found = self._all() if namespace is None else self._held.get(namespace, {}).values()
            return tuple(held.seal for held in found if held.is_verified)

    def namespaces(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(name for name, held in self._held.items() if held)

    def verify(self, seal: Seal, *, between: Callable[[int], None] | None = None) -> bool:
        """Hashes a shard now. One whose bytes are not its own is dropped as corrupt; False for that one, and for one that is gone."""
        try:
            with self._lock:
                held = self._get(seal)
            with held.verifying:
                return self._verify(held, between)
        except Gone:
            return False

    def spoil(self, seal: Seal, *, at: int) -> None:
        """An injected fault: changes a byte of a shard, and nothing else. Raises Gone."""
        with self.read(seal):
            body = self._get(seal).segment.body
            body[at] ^= 1

    # ------------------------------------------------------------ letting go

    def drop(
        self, namespace: str, *, step: int | None = None, index: int | None = None, save: str | None = None, why: str
    ) -> tuple[Seal, ...]:
        """Lets go of a namespace, of a step, or of a shard, of any save or of one; returns what went."""
        with self._lock:
            gone = [
                held.seal
                for held in self._held.get(namespace, {}).values()
                if step in {None, held.seal.step} and index in {None, held.seal.index} and save in {None, held.seal.save}
            ]
            if step is None and index is None:
                self._kept.pop(namespace, None)
                self._pool.unclaim(namespace)
        return self._retire_all(gone, why)

    def retain(
        self,
        namespace: str,
        *,
        keep: int,
        newest_complete: int | None,
        pinned: Collection[int] = (),
        saves: Mapping[int, str] | None = None,
        is_by_time: bool = False,
    ) -> tuple[Seal, ...]:
        """Lets go of what is older than the ``keep`` newest complete steps, and remembers what must stay when room is needed (``retention``)."""
        kept = Kept(keep, newest_complete, frozenset(pinned), dict(saves or {}), is_by_time)
        with self._lock:
            self._kept[namespace] = kept
            present = [held.seal for held in self._held.get(namespace, {}).values()]
        return self._retire_all(retention.to_retire(present, kept), f"older than the newest {keep} complete in memory")

    def resize(self, allocated_bytes: int) -> tuple[Seal, ...]:
        """Another cap. Spares go first, then the oldest shards; what went is returned. Segments under a reader go when it has read (``tidy``)."""
        self.budget.allocated = allocated_bytes
        return self.tidy()

    def tidy(self) -> tuple[Seal, ...]:
        """Gives back what is beyond the cap: what was read, or being filled, when the cap fell."""
        gone: list[Seal] = []
        with self._lock:
            self._pool.trim(0, None, is_urgent=True)
            for seal in retention.for_a_smaller_cap([held.seal for held in self._all()], self._kept):
                if not self.budget.excess:
                    break
                if not self._get(seal).segment.is_leased():
                    self._retire(seal)
                    gone.append(seal)
        self._tell(*(Change(seal, CopyStatus.DROPPED, "the memory tier became smaller") for seal in gone))
        return tuple(gone)

    # ------------------------------------------------------------ telling

    def watch(self, listener: Callable[[Change], None]) -> None:
        """Called outside the lock, by the thread that made the change. It must not block, and must not raise."""
        self._listeners.append(guarded(listener))

    @property
    def usage(self) -> Usage:
        with self._lock:
            shards = sum(len(held) for held in self._held.values())
            budget = self.budget
            return Usage(budget.allocated, budget.used, shards, self._pool.nbytes, budget.refusals)

    # ------------------------------------------------------------ inside

    def _fresh(self, nbytes: int, claim: tuple[str, int]) -> Segment:
        """A segment that nobody has claimed. Raises NoRoom."""
        need = segments.size_for(nbytes, granule=self._pool.granule)
        with self._lock:
            segment = self._pool.pick(nbytes, None)
            if segment is None and self.budget.free < need:
                self._pool.trim(need, claim, is_urgent=False)
        return segment or self._pool.create(nbytes)

    def _squeeze(self, namespace: str, claim: tuple[str, int], nbytes: int) -> Segment | None:
        """Makes room at others' cost: spares, older steps of this namespace, what was reserved for others, older steps of others."""
        need = segments.size_for(nbytes, granule=self._pool.granule)
        others = [name for name in self.namespaces() if name != namespace]
        for names, is_urgent in (([], False), ([namespace], False), ([], True), (others, True)):
            for victims in self._victims(names) or [()]:
                self._retire_all(victims, f"made room for namespace {namespace}")
                with self._lock:
                    segment = self._pool.pick(nbytes, claim, is_urgent=is_urgent)
                    if segment is None:
                        self._pool.trim(need, claim, is_urgent=is_urgent)
                if segment is not None:
                    return segment
                with contextlib.suppress(NoRoom):
                    return self._pool.create(nbytes)
        return None

    def _victims(self, names: Collection[str]) -> list[tuple[Seal, ...]]:
        with self._lock:
            return [
                step
                for name in names
                for step in retention.under_pressure(
                    [held.seal for held in self._held.get(name, {}).values()], self._kept.get(name), now=self._now()
                )
            ]

    def _commit(self, segment: Segment, seal: Seal) -> None:
        step = self._shards / seal.namespace / str(seal.step)
        step.mkdir(mode=0o700, parents=True, exist_ok=True)
        segment.write_stamp(seal.stamp)
        segment.move(step / f"{seal.index}-{segment.id}")
        seals.write(segment.path, seal)
        before = self._same(seal)
        self._held.setdefault(seal.namespace, {})[seal.stamp] = Held(seal, segment, is_verified=True)
        if before is not None:
            self._retire(before.seal)

    def _same(self, seal: Seal, *, than: float | None = None) -> Held | None:
        """The same shard of the same save; with ``than`` only one that is younger."""
        for held in self._held.get(seal.namespace, {}).values():
            if (held.seal.key, held.seal.save) == (seal.key, seal.save) and (than is None or held.seal.written_at > than):
                return held
        return None

    def _verify(self, held: Held, between: Callable[[int], None] | None) -> bool:
        was_verified = held.is_verified
        with self.read(held.seal) as reading:
            is_good = stamp_fits(held.segment, held.seal) and hashing.digest(reading.view, between=between) == held.seal.digest
        if is_good:
            held.is_verified = True
            if not was_verified:
                self._tell(Change(held.seal, CopyStatus.SEALED, "adopted"))
            return True
        with self._lock:
            self._get(held.seal)
            self._retire(held.seal)
            self.corruptions += 1
        self._tell(Change(held.seal, CopyStatus.CORRUPT, "its bytes do not have its digest"))
        return False

    def _retire_all(self, gone: Collection[Seal], why: str) -> tuple[Seal, ...]:
        went = []
        for seal in gone:
            with self._lock, contextlib.suppress(Gone):
                self._retire(seal)
                went.append(seal)
        self._tell(*(Change(seal, CopyStatus.DROPPED, why) for seal in went))
        return tuple(went)

    def _retire(self, seal: Seal) -> None:
        """Raises Gone."""
        held = self._get(seal)
        del self._held[seal.namespace][seal.stamp]
        step = held.segment.path.parent
        seals.remove(held.segment.path)
        self._pool.put(held.segment)
        for folder in (step, step.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _get(self, seal: Seal) -> Held:
        held = self._held.get(seal.namespace, {}).get(seal.stamp)
        if held is None:
            message = f"shard {seal.index} of step {seal.step} of namespace {seal.namespace} is not held any more"
            raise Gone(message)
        return held

    def _all(self) -> list[Held]:
        return [held for space in self._held.values() for held in space.values()]

    def _release(self, segment: Segment) -> None:
        with self._lock:
            segment.readers -= 1

    def _tell(self, *changes: Change) -> None:
        for change in changes:
            for listener in self._listeners:
                listener(change)
