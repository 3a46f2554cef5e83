"""All tiers of a job's checkpoints behind one object: memory of this node and its peers, and the object store.

Saving asks the memory tier first. What it has no room for, or a tier that is away, is written to the object store if the step is to be durable,
and refused in words if not: training goes on either way. Where no memory tier is configured the object store alone does everything.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from everstep.checkpoint import settings
from everstep.checkpoint.cold import Cold
from everstep.checkpoint.copies import digest_of
from everstep.checkpoint.doors import Doors
from everstep.checkpoint.memory import Memory, MemoryShard
from everstep.checkpoint.reading import StepReader
from everstep.errors import CheckpointUnreadable, EverstepError, NoTier, SaveFailed, SaveRefused, TierAway
from everstep.shards import Holder, Manifest, Seal, ShardKind, StepFound

log = logging.getLogger("everstep.checkpoint")


class Tiers:
    """Thread-safe. ``namespace``: whose checkpoints. Close it when its last reader is closed."""

    def __init__(self, seen: settings.Settings, *, now: Callable[[], float] = time.time) -> None:
        self.settings = seen
        self.namespace = seen.namespace
        self._now = now
        self.memory = Memory(seen.socket_path, seen.namespace, seen.token) if seen.socket_path else None
        self.cold = Cold(seen.durable_url, now=now) if seen.durable_url else None
        self.doors = Doors(seen.namespace, seen.token)
        self.committed: Callable[[Manifest], None] = _nobody
        """Hears of each step that this process has committed to the object store itself: no memory tier tells of it. The runtime sets it."""
        self._spare: list[mmap.mmap] = []

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: str) -> Self:
        """``overrides`` replace variables: ``from_environment(EVERSTEP_NAMESPACE="mine")``. Raises CheckpointMismatch on a bad namespace."""
        return cls(settings.read({**settings.environment(environ), **overrides}))

    @property
    def has_memory(self) -> bool:
        return self.memory is not None

    @property
    def is_memory_there(self) -> bool:
        """Whether a memory tier that is configured is switched on now."""
        return self.memory is not None and self.memory.is_there

    @property
    def has_store(self) -> bool:
        return self.cold is not None

    def latest(self, limit: int = 1) -> tuple[StepFound, ...]:
        """The newest complete steps over all tiers, newest first.

        A tier that is away makes fewer steps visible, and is logged.

        Raises TierAway if nothing is found and a tier could not be asked: that is not the same as nothing being there.
        """
        return self._find(None, limit)

    def find(self, step: int) -> StepFound | None:
        """The step, if it is complete in some tier now."""
        return next(iter(self._find(step, 1)), None)

    def reserve(self, index: int, nbytes: int, count: int) -> int:
        """How many segments for shard ``index`` of ``nbytes`` stand ready, mapped and touched in this process; 0 without a memory tier.

        N + 1 for N kept steps make every save, also the first, a mere copy.
        """
        if self.memory is None:
            return 0
        try:
            return self.memory.reserve(index, nbytes, count)
        except (SaveRefused, TierAway) as error:
            log.warning("no segments were reserved: %s", error)
            return 0

    def open(self, *, index: int, step: int, save: str, nbytes: int, kind: ShardKind, is_durable: bool) -> OpenShard:
        """A place for a shard of at most ``nbytes``. Raises SaveRefused."""
        if self.memory is None:
            why = "this process has no memory tier (EVERSTEP_CHECKPOINT_SOCKET is not set)"
        else:
            try:
                opened = self.memory.open(index=index, step=step, save=save, nbytes=nbytes, kind=kind, is_durable=is_durable)
                return OpenShard(self, opened, opened.body, _draft(self, index, step, save, kind, is_durable))
            except (SaveRefused, TierAway) as error:
                why = str(error)
        if not is_durable or self.cold is None:
            remedy = (
                "make the step durable or give the memory tier more room" if self.cold else "no object store is configured either"
            )
            message = f"step {step} is not saved: {why}; {remedy}"
            raise SaveRefused(message)
        if self.memory is not None:
            log.warning("step %d goes straight to the object store: %s", step, why)
        return OpenShard(self, None, self.private(nbytes), _draft(self, index, step, save, kind, is_durable))

    def read(self, found: StepFound, *, verify: bool = True) -> StepReader:
        """``verify`` compares shards with their digests: see ``reading``."""
        return StepReader(self, found, verify=verify)

    def discard(self, after: int) -> None:
        """Steps newer than ``after`` are of a past that training has left: no tier tells of them again. Raises TierAway or OSError."""
        if self.memory is not None:
            try:
                self.memory.discard(after)
            except TierAway as error:
                if self.cold is None:
                    raise
                log.warning("steps after %d are put aside in the object store only: %s", after, error)
            else:
                return
        if self.cold is not None:
            self.cold.discard(self.namespace, after)

    def wait(self, step: int, *, replicas: int = 1, is_durable: bool = False, seconds: float = 60.0) -> Mapping[str, Any]:
        """Until the step has that many copies in memory and, if asked, is durable; then, or when the time is over, {replicas, is_durable}."""
        if self.memory is not None:
            return self.memory.wait(step, replicas=replicas, is_durable=is_durable, seconds=seconds)
        durable = self.cold is not None and self.cold.manifest(self.namespace, step) is not None
        return {"replicas": 0, "is_durable": durable}

    def status(self) -> Mapping[str, Any]:
        """What the memory tier says of itself and of the policy of the job; {} without one. Raises TierAway."""
        return self.memory.status() if self.memory is not None else {}

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()
        if self.cold is not None:
            self.cold.close()
        self.doors.close()

    def private(self, nbytes: int) -> memoryview:
        """A buffer of this process's own. The last one is used again, as new memory costs more than the copy."""
        while self._spare:
            buffer = self._spare.pop()
            if nbytes <= len(buffer) <= 2 * nbytes + mmap.PAGESIZE:
                return memoryview(buffer)[:nbytes]
        return memoryview(mmap.mmap(-1, max(nbytes, mmap.PAGESIZE)))[:nbytes]

    def take_back(self, body: memoryview) -> None:
        if isinstance(body.obj, mmap.mmap) and not self._spare:
            self._spare.append(body.obj)

    def now(self) -> float:
        return self._now()

    def _find(self, step: int | None, limit: int) -> tuple[StepFound, ...]:
        found: tuple[StepFound, ...] = ()
        away: EverstepError | OSError | None = None
        # What the memory tier tells includes the durable steps. While it tells of a step nobody reads the object store.
        for ask in (self._find_in_memory, self._find_durable):
            try:
                found = found or ask(step, limit)
            except NoTier:
                continue  # nobody to ask, and nothing that could be there: no memory tier of this cluster is on
            except (TierAway, SaveRefused, OSError) as error:
                log.warning("a tier is not asked for checkpoints: %s", error)
                away = error
        if away is not None and not found:
            message = f"whether there is a checkpoint of {self.namespace} cannot be told, and training must not begin anew on a guess: {away}"
            raise TierAway(message) from away
        return found

    def _find_in_memory(self, step: int | None, limit: int) -> tuple[StepFound, ...]:
        return self.memory.find(step, limit) if self.memory is not None else ()

    def _find_durable(self, step: int | None, limit: int) -> tuple[StepFound, ...]:
        if self.cold is None:
            return ()
        if step is not None:
            manifest = self.cold.manifest(self.namespace, step)
            return () if manifest is None else (_durable(manifest),)
        return tuple(itertools.islice(self._durable_ones(self.cold), limit))

    def _durable_ones(self, cold: Cold) -> Iterator[StepFound]:
        """Newest first. A manifest that is damaged, or removed meanwhile, hides none of the older ones."""
        damaged: CheckpointUnreadable | None = None
        is_any = False
        for number in cold.steps(self.namespace):
            try:
                manifest = cold.manifest(self.namespace, number)
            except CheckpointUnreadable as error:
                log.warning("step %d is passed over: %s", number, error)
                damaged = error
                continue
            if manifest is not None:
                is_any = True
                yield _durable(manifest)
        if damaged is not None and not is_any:
            raise TierAway(str(damaged))


class OpenShard:
    """A shard being written. ``body`` is its memory; ``is_in_memory``: a segment that others can read once it is sealed.

    ``views`` is for what is laid over the body: it lives as long as the segment is mapped here, which is over many saves.
    """

    def __init__(self, tiers: Tiers, segment: MemoryShard | None, body: memoryview, draft: Seal) -> None:
        self._tiers = tiers
        self._segment = segment
        self._draft = draft
        self.body = body
        self.is_in_memory = segment is not None
        self.views: dict[Any, Any] = {} if segment is None else segment.views

    def seal(self, nbytes: int, save: str | None = None) -> Seal:
        """Commits the first ``nbytes`` of ``body``. ``save`` names the save where ``open`` could not. Raises SaveFailed; then there is no shard."""
        draft = _with(self._draft, size=nbytes, save=self._draft.save if save is None else save)
        if self._segment is None:
            return self._seal_durable(draft, self.body[:nbytes])
        try:
            return self._segment.seal(nbytes, save)
        except (TierAway, SaveRefused) as error:
            if not draft.is_durable or self._tiers.cold is None:
                message = f"shard {draft.index} of step {draft.step} is not saved: {error}"
                raise SaveFailed(message) from error
            log.warning("shard %d of step %d goes straight to the object store: %s", draft.index, draft.step, error)
            return self._seal_durable(draft, self.body[:nbytes])
        finally:
            self._segment.release()

    def abandon(self) -> None:
        """Gives the place back; nothing was saved. Never raises."""
        if self._segment is not None:
            self._segment.abandon()
            self._segment.release()
        else:
            self._tiers.take_back(self.body)

    def _seal_durable(self, draft: Seal, body: memoryview) -> Seal:
        cold = self._tiers.cold
        if cold is None:
            raise SaveFailed
        seal = _with(draft, digest=digest_of([body]), written_at=self._tiers.now())
        try:
            manifest = cold.write(seal, body)
        except OSError as error:
            message = f"shard {seal.index} of step {seal.step} is not saved: {error}"
            raise SaveFailed(message) from error
        self._tiers.take_back(self.body)
        if manifest is not None:
            self._tiers.committed(manifest)
        return seal


def _nobody(_: Manifest) -> None: ...


def _draft(tiers: Tiers, index: int, step: int, save: str, kind: ShardKind, is_durable: bool) -> Seal:
    return Seal(tiers.namespace, index, step, kind, 0, "", "", 0.0, save, tiers.settings.node, is_durable)


def _with(seal: Seal, **changed: Any) -> Seal:
    return Seal(**{**vars(seal), **changed})


def _durable(manifest: Manifest) -> StepFound:
    nobody: tuple[Holder, ...] = ()
    return StepFound(
        manifest.namespace, manifest.step, manifest.world_size, manifest.save, (nobody,) * (manifest.world_size + 1), False, True
    )


_of_environments: dict[settings.Settings, Tiers] = {}


def of_environment() -> Tiers:
    """The tiers that this process's environment names. One object for all savers: mapping a segment anew would cost more than a save."""
    seen = settings.read(settings.environment())
    if seen not in _of_environments:
        _of_environments[seen] = Tiers(seen)
    return _of_environments[seen]
