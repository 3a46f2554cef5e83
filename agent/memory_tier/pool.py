"""Segments that hold nothing: which of them fits, which is given back. The store's lock guards it, but for ``create``, which takes its time."""

from __future__ import annotations

import contextlib
from pathlib import Path

from agent.memory_tier import ids, segments
from agent.memory_tier.budget import Budget, NoRoom
from agent.memory_tier.segments import Segment
from everstep.shards import STAMP_BYTES

Claim = tuple[str, int]

_LOOSE = 1.5
"""A segment that is larger than this many times what is asked is left to larger shards."""


class Pool:
    """Spare segments below ``folder``. Their bytes are granted by the budget as long as their files are there."""

    def __init__(self, folder: Path, budget: Budget, *, granule: int) -> None:
        self.folder = folder
        self.granule = granule
        self._budget = budget
        self._spare: dict[str, Segment] = {}

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self._spare.values())

    def adopt(self, segment: Segment) -> None:
        self._spare[segment.id] = segment

    def put(self, segment: Segment) -> None:
        """Takes a segment back, or gives it back where too much is granted, or where somebody has deleted its file. Raises OSError."""
        try:
            if segment.path.parent != self.folder:
                segment.move(self.folder / segment.id)
        except FileNotFoundError:
            self._unlink(segment)
            return
        self._spare[segment.id] = segment
        if not segment.is_whole() or (self._budget.excess and not segment.is_leased()):
            self._unlink(segment)

    def pick(self, nbytes: int, claim: Claim | None, *, is_urgent: bool = False) -> Segment | None:
        """One that can hold so many bytes: claimed for this shard if possible, the smallest; in urgency anybody's, of any size. None: an unclaimed one."""
        fitting = [
            segment
            for segment in self._spare.values()
            if self._fits(segment, nbytes, is_urgent=is_urgent) and (is_urgent or segment.claim in {None, claim})
        ]
        for segment in sorted(fitting, key=lambda one: (one.claim != claim, one.nbytes)):
            if not segment.is_leased() and _is_blanked(segment):
                return self._spare.pop(segment.id)
        return None

    def heal(self) -> None:
        """Somebody may have deleted files, or all of the folder, under this process. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for segment in [one for one in self._spare.values() if not one.is_whole()]:
            self._unlink(segment)

    def claimed(self, nbytes: int, claim: Claim) -> int:
        """How many spares stand ready for this shard; unclaimed ones that fit are not claimed by asking."""
        return sum(segment.claim == claim and self._fits(segment, nbytes) for segment in self._spare.values())

    def create(self, nbytes: int) -> Segment:
        """A new segment with all its pages. Without the store's lock: it may take seconds. Raises NoRoom."""
        size, name = segments.size_for(nbytes, granule=self.granule), ids.fresh()
        self._budget.take(size)
        try:
            segment = segments.create(self.folder, name, size)
            segment.populate()
        except (NoRoom, OSError):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()
            self._budget.put_back(size)
            raise
        return segment

    def trim(self, need: int, claim: Claim | None, *, is_urgent: bool) -> bool:
        """Unlinks spares until ``need`` bytes are free: those that nobody claims, the claimant's own that do not fit, in urgency all.

        False if none could go.
        """
        gone = False
        for segment in sorted(self._spare.values(), key=lambda one: (one.claim is not None, one.nbytes)):
            if self._budget.free >= need and not self._budget.excess:
                break
            is_of_no_use = segment.claim is None or (segment.claim == claim and not self._fits(segment, need - STAMP_BYTES))
            if (is_urgent or is_of_no_use) and not segment.is_leased():
                self._unlink(segment)
                gone = True
        return gone

    def unclaim(self, namespace: str, index: int | None = None) -> None:
        """Nobody will come for what was reserved for a namespace, or for a shard of it."""
        for segment in self._spare.values():
            if segment.claim is not None and segment.claim[0] == namespace and index in {None, segment.claim[1]}:
                segment.claim = None

    def _fits(self, segment: Segment, nbytes: int, *, is_urgent: bool = False) -> bool:
        size = segments.size_for(nbytes, granule=self.granule)
        is_too_large = segment.nbytes > max(size * _LOOSE, size + segments.HUGE_PAGE_BYTES)
        return size <= segment.nbytes and (is_urgent or not is_too_large)

    def _unlink(self, segment: Segment) -> None:
        with contextlib.suppress(FileNotFoundError):
            segment.path.unlink()
        self._spare.pop(segment.id, None)
        self._budget.put_back(segment.nbytes)


def _is_blanked(segment: Segment) -> bool:
    """Its stamp goes before its bytes change. One that was cut off, or cannot be mapped now, is left where it is."""
    try:
        if segment.is_whole():
            segment.write_stamp("")
            return True
    except OSError:
        pass
    return False
