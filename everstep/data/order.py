"""The order of samples, without any state but one integer.

Sample number ``n`` of a run is element ``n % size`` of the permutation of epoch ``n // size``. So a rank that has just joined knows the
next batch from the cursor alone, no sample is seen twice or skipped within an epoch, and no membership changes the order.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

_WORD = 1 << 64


class DataOrder:
    """Which dataset indices are consumed when. Equal (size, seed) give equal orders in every process and on every machine."""

    def __init__(self, size: int, seed: int) -> None:
        if size <= 0:
            message = "the dataset is empty"
            raise ValueError(message)
        self._size = size
        self._seed = seed

    def indices(self, consumed: int, count: int) -> list[int]:
        """The dataset indices of the ``count`` samples after the first ``consumed`` ones. May span epochs."""
        found: list[int] = []
        while count > 0:
            epoch, offset = divmod(consumed, self._size)
            taken = permutation(self._size, self._seed, epoch)[offset : offset + count]
            found.extend(taken)
            consumed += len(taken)
            count -= len(taken)
        return found


@functools.lru_cache(maxsize=4)
def permutation(size: int, seed: int, epoch: int) -> Sequence[int]:
    """Fisher-Yates driven by SplitMix64, so that the order depends on no library's generator and may be relied on for ever."""
    state = int.from_bytes(hashlib.sha256(f"{seed}:{epoch}".encode()).digest()[:8], "little")
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) % _WORD
        chosen = _mix(state) * (last + 1) >> 64
        order[last], order[chosen] = order[chosen], order[last]
    return tuple(order)


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % _WORD
    return word ^ (word >> 31)
