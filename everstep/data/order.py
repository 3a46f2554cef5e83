"""The order of samples, without any state but one integer.

Sample number ``n`` of a run is element ``n % size`` of the permutation of epoch ``n // size``. So a rank that has just joined knows the
next batch from the cursor alone, no sample is seen twice or skipped within an epoch, and no membership changes the order.

A permutation is computed element by element, never as a list: a rank that joins in the middle of an epoch of a hundred million samples
would otherwise keep everybody waiting.
"""

from __future__ import annotations

import functools
import hashlib

_WORD = (1 << 64) - 1
_ROUNDS = 8


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
        places = (divmod(number, self._size) for number in range(consumed, consumed + count))
        return [permutation(self._size, self._seed, epoch).at(offset) for epoch, offset in places]


class Permutation:
    """A keyed permutation of ``range(size)``, any element at once.

    A Feistel network with two halves of unequal width permutes the next power of two; an image outside of the range is mapped again
    until it is inside (cycle walking: Black and Rogaway, 2002), fewer than two times on average. The round function is SplitMix64's
    mixer, so that the order depends on no library's generator.
    """

    def __init__(self, size: int, keys: tuple[int, ...]) -> None:
        self._size = size
        self._keys = keys
        bits = max(1, (size - 1).bit_length())
        self._low_bits = bits - bits // 2
        self._low_mask = (1 << self._low_bits) - 1
        self._high_mask = (1 << (bits // 2)) - 1

    def at(self, place: int) -> int:
        image = self._image(place)
        while image >= self._size:
            image = self._image(image)
        return image

    def _image(self, place: int) -> int:
        high, low = place >> self._low_bits, place & self._low_mask
        for first, second in zip(self._keys[::2], self._keys[1::2], strict=True):
            high ^= _mix(low ^ first) & self._high_mask
            low ^= _mix(high ^ second) & self._low_mask
        return (high << self._low_bits) | low


@functools.lru_cache(maxsize=8)
def permutation(size: int, seed: int, epoch: int) -> Permutation:
    """That of one epoch."""
    return Permutation(size, tuple(_key(seed, epoch, number) for number in range(_ROUNDS)))


def _key(seed: int, epoch: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{epoch}:{number}".encode()).digest()[:8], "little")


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
