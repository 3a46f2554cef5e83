"""Bytes of a complete step: from this node's memory, else from a peer's, else from the object store, and no byte of a copy that is bad.

What is verified, unless ``verify`` is off: everything. Where less than half of a shard is wanted and all of that are items with digests of their own
(``layout``), those items; else the whole shard, all of which is then read: from this node's memory while it is copied, from elsewhere as it comes.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from torch import Tensor

from everstep.checkpoint.contents import Contents
from everstep.checkpoint.copies import copies_of
from everstep.checkpoint.fetching import Bytes, Region, ShardReader, Want
from everstep.checkpoint.layout import Layout
from everstep.checkpoint.torch_parts import dtype_of, local_of, own_rows
from everstep.errors import CheckpointMismatch
from everstep.shards import StepFound

if TYPE_CHECKING:
    from everstep.checkpoint.tiers import Tiers

log = logging.getLogger("everstep.checkpoint")
_AT_ONCE = 4


class StepReader:
    """A context manager: it holds leases on this node's segments while it is open.

    ``counts`` are bytes by source: "memory", "peer", "store". ``told`` are sentences on every copy that was passed over, and why.
    Every method raises CheckpointUnreadable when no copy of a shard is good.
    """

    def __init__(self, tiers: Tiers, found: StepFound, *, verify: bool = True) -> None:
        self.found = found
        self.counts: dict[str, int] = {"memory": 0, "peer": 0, "store": 0}
        self.told: list[str] = []
        self._shards = [
            ShardReader(f"shard {index} of step {found.step}", copies_of(tiers, found, index), self, verify=verify)
            for index in range(found.world_size + 1)
        ]
        self._contents: Contents | None = None
        self._lock = threading.Lock()

    def metadata(self) -> Contents:
        """What the step holds."""
        if self._contents is None:
            self._contents = self._shards[self.found.world_size].read(lambda copy: Contents.from_json(copy.whole()))
        return self._contents

    def fill(self, wants: Iterable[Region | Bytes]) -> None:
        """Copies all regions into their tensors and gives all bytes to whom they are for; several shards are read at the same time."""
        by_shard: defaultdict[int, list[Want]] = defaultdict(list)
        for want in wants:
            by_shard[want.shard].append(want)
        self._at_once([(self._shards[shard], some) for shard, some in by_shard.items()])

    def fill_tensors(self, targets: Mapping[str, Tensor]) -> None:
        """Copies tensors by name: whole ones, and of those that are divided by rows the own part. Raises CheckpointMismatch if one is not in the step or has another shape."""
        self.fill(want for name, into in targets.items() for want in self.regions(name, into))

    def regions(self, name: str, into: Tensor) -> Iterator[Region]:
        """What makes up the tensor of that name; of one that is divided by rows, what this process has of it."""
        content = self.metadata().tensors.get(name)
        if content is None or tuple(into.shape) != content.size:
            has = "no such tensor" if content is None else f"the shape {content.size}"
            message = f"{name!r} of shape {tuple(into.shape)} is asked for; step {self.found.step} has {has}"
            raise CheckpointMismatch(message)
        first, end = own_rows(into)
        for chunk in content.chunks:
            if not content.size:
                yield Region(chunk.shard, name, (), (), (), (), dtype_of(content.dtype), local_of(into))
                continue
            low, high = max(first, chunk.offsets[0]), min(end, chunk.offsets[0] + chunk.sizes[0])
            if low >= high and content.size[0]:
                continue
            part = local_of(into).narrow(0, low - first, high - low)
            for axis, (offset, length) in enumerate(zip(chunk.offsets[1:], chunk.sizes[1:], strict=True), 1):
                part = part.narrow(axis, offset, length)
            begins = (low - chunk.offsets[0], *(0 for _ in chunk.sizes[1:]))
            lengths = (high - low, *chunk.sizes[1:])
            yield Region(chunk.shard, name, chunk.offsets, chunk.sizes, begins, lengths, dtype_of(content.dtype), part)

    def blob(self, name: str) -> bytes:
        """The bytes that were saved under that name. Raises CheckpointMismatch if there are none."""
        found: list[bytes] = []
        self.fill([Bytes(self.shard_of(name), name, found.append)])
        return found[-1]

    def shard_of(self, blob: str) -> int:
        """Which shard has the bytes of that name. Raises CheckpointMismatch if none has."""
        shard = self.metadata().blobs.get(blob)
        if shard is None:
            message = f"step {self.found.step} has no bytes called {blob!r}"
            raise CheckpointMismatch(message)
        return shard

    def verify(self) -> None:
        """Compares every shard with its digest: reads all of the step once."""
        for shard in self._shards:
            shard.verify()

    def layout(self, shard: int) -> Layout:
        """Of a data shard."""
        return self._shards[shard].read(lambda copy: copy.layout())

    def view(self, region: Region) -> Tensor | None:
        """The region as a tensor over this node's segment, without a copy; None if it is elsewhere or not contiguous.

        The segment is not recycled while the tensor lives. Writing into it changes a private page, at some twenty times the cost of a copy.
        """
        return self._shards[region.shard].view(region)

    def close(self) -> None:
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count(self, source: str, nbytes: int) -> None:
        with self._lock:
            self.counts[source] += nbytes

    def say(self, words: str) -> None:
        log.warning("%s", words)
        with self._lock:
            self.told.append(words)

    def _at_once(self, work: Sequence[tuple[ShardReader, list[Want]]]) -> None:
        if len(work) == 1:
            work[0][0].fill(work[0][1])
        elif work:
            with ThreadPoolExecutor(min(_AT_ONCE, len(work)), thread_name_prefix="everstep-load") as threads:
                for done in [threads.submit(shard.fill, wants) for shard, wants in work]:
                    done.result()
