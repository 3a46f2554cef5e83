"""Segments that hold nothing: which of them fits, which is given back. The store's lock guards it, but for ``create``, which takes its time."""

from __future__ import annotations

import contextlib
from pathlib import Path

from agent.memory_tier import ids, segments
from agent.memory_tier.budget import Budget, NoRoom
from agent.memory_tier.segments import Segment

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
        """Takes a segment back, or gives it back where too much is granted. Raises OSError."""
        if segment.path.parent != self.folder:
            segment.move(self.folder / segment.id)
        self._spare[segment.id] = segment
        if self._budget.excess and not segment.is_leased():
            self._unlink(segment)

    def pick(self, nbytes: int, claim: Claim | None, *, is_urgent: bool = False) -> Segment | None:
        """One that can hold so many bytes: claimed for this shard if possible, the smallest; in urgency anybody's, of any size. None: an unclaimed one."""
        size = segments.size_for(nbytes, granule=self.granule)
        most = None if is_urgent else max(size * _LOOSE, size + segments.HUGE_PAGE_BYTES)
        fitting = [
            segment
            for segment in self._spare.values()
            if size <= segment.nbytes and (most is None or segment.nbytes <= most) and (is_urgent or segment.claim in {None, claim})
        ]
        for segment in sorted(fitting, key=lambda one: (one.claim != claim, one.nbytes)):
            if not segment.is_leased():
                return self._spare.pop(segment.id)
        return None

    def claimed(self, nbytes: int, claim: Claim) -> int:
        """How many spares stand ready for this shard; unclaimed ones that fit are not claimed by asking."""
        size = segments.size_for(nbytes, granule=self.granule)
        return sum(segment.claim == claim and segment.nbytes >= size for segment in self._spare.values())

    def create(self, nbytes: int) -> Segment:
        """A new segment with all its pages. Without the store's lock: it may take seconds. Raises NoRoom."""
        size = segments.size_for(nbytes, granule=self.granule)
        self._budget.take(size)
        try:
            segment = segments.create(self.folder, ids.fresh(), size)
        except (NoRoom, OSError):
            self._budget.put_back(size)
            raise
        segment.populate()
        return segment

    def trim(self, need: int, claim: Claim | None, *, is_urgent: bool) -> bool:
        """Unlinks spares until ``need`` bytes are free: those that nobody claims, the claimant's own that are too small, in urgency all.

        False if none could go.
        """
        gone = False
        for segment in sorted(self._spare.values(), key=lambda one: (one.claim is not None, one.nbytes)):
            if self._budget.free >= need and not self._budget.excess:
                break
            is_of_no_use = segment.claim is None or (segment.claim == claim and segment.nbytes < need)
            if (is_urgent or is_of_no_use) and not segment.is_leased():
                self._unlink(segment)
                gone = True
        return gone

    def disown(self, namespace: str) -> None:
        """Nobody of that namespace will come for what was reserved."""
        for segment in self._spare.values():
            if segment.claim is not None and segment.claim[0] == namespace:
                segment.claim = None

    def _unlink(self, segment: Segment) -> None:
        with contextlib.suppress(FileNotFoundError):
            segment.path.unlink()
        self._spare.pop(segment.id, None)
        self._budget.put_back(segment.nbytes)
