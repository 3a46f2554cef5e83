"""Where the ranks of a group are found, had all at once while gloo connects each with each.

gloo lays its own address under ``<prefix><rank>`` and then waits for and gets that of each rank in turn: two requests a rank, of which a rendezvous server
answers the square. With sixty-four ranks that took longer than the connections themselves.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


class Addresses(dist.Store):
    """In front of a group's ``store``. Whatever it does not know goes through to that, so a gloo that named its keys otherwise would only be slower."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        super().__init__()
        self._store = store
        self._rank = str(rank)
        self._size = size
        self._all: dict[str, bytes | None] = {}
        """Every rank's key; None as long as nobody has asked for them."""

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]
        prefix = key.removesuffix(self._rank)
        if not self._all and key == prefix + self._rank:
            self._all = {f"{prefix}{rank}": None for rank in range(self._size)}

    def get(self, key: str) -> bytes:
        known = self._known(key)
        return self._store.get(key) if known is None else known

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        unknown = [key for key in keys if self._known(key) is None]
        if unknown:
            self._store.wait(unknown, *(() if timeout is None else (timeout,)))

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def _known(self, key: str) -> bytes | None:
        """A rank's address; the first that is asked for brings them all, when all are there. None for every other key."""
        if key in self._all and self._all[key] is None:
            keys = list(self._all)
            self._all = dict(zip(keys, self._store.multi_get(keys), strict=True))
        return self._all.get(key)
