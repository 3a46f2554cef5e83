"""The order of samples, without any state but one integer.

Sample number ``n`` of a run is element ``n % size`` of the permutation of epoch ``n // size``. So a rank that has just joined knows the
next batch from the cursor alone, no sample is seen twice or skipped within an epoch, and no membership changes the order.

A permutation is computed element by element, never as a list: a rank that joins in the middle of an epoch of a hundred million samples
would otherwise keep everybody waiting.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
_Words = NDArray[np.uint64]


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
        return self.rows(consumed, count)[0]

    def rows(self, consumed: int, count: int, *, apart: int = 0, rows: int = 1) -> list[list[int]]:
        """As ``indices``, and those of further ``rows`` that begin ``apart`` samples after each other: many cost little more than one."""
        starts = np.arange(rows, dtype=np.uint64) * np.uint64(apart) + np.uint64(consumed)
        epochs, places = np.divmod(starts[:, np.newaxis] + np.arange(count, dtype=np.uint64), np.uint64(self._size))
        for epoch in np.unique(epochs):
            own = epochs == epoch
            places[own] = permutation(self._size, self._seed, int(epoch)).at(places[own])
        found: list[list[int]] = places.tolist()
        return found


class Permutation:
    """A keyed permutation of ``range(size)``, any element at once.

    A Feistel network with two halves of unequal width permutes the next power of two; an image outside of the range is mapped again
    until it is inside (cycle walking: Black and Rogaway, 2002), fewer than two times on average. The round function is SplitMix64's
    mixer, so that the order depends on no library's generator.
    """

    def __init__(self, size: int, keys: tuple[int, ...]) -> None:
        self._size = np.uint64(size)
        self._keys = np.array(keys, dtype=np.uint64)
        bits = max(1, (size - 1).bit_length())
        self._low_bits = np.uint64(bits - bits // 2)
        self._low_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits // 2)) - 1)

    def at(self, places: _Words) -> _Words:
        """The elements at these places."""
        images = self._images(places)
        while (outside := images >= self._size).any():
            images[outside] = self._images(images[outside])
        return images

    def _images(self, places: _Words) -> _Words:
        high, low = places >> self._low_bits, places & self._low_mask
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


def _mix(words: _Words) -> _Words:
    """Arithmetic of 64 bits, which wraps around."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
