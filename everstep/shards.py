"""What a saved step is made of, in the words of everybody who holds a part of it: the memory tier, the object store, the library.

A *step* of a *namespace* is saved by a world of ``W`` ranks as the shards ``0 … W-1`` and one metadata shard, whose index is ``W``. A shard is
bytes and a *seal*; without its seal it does not exist. A step is *complete* when its metadata shard and all ``W`` data shards of the same
*save* can be had now. Only complete steps are ever told as the latest.

Standard library only: node agents and users' training environments share this module.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from everstep.wire import Wire

PORT = 9200
"""Where a node's memory tier listens: the port of AWS's package."""
STAMP_BYTES = 4096
"""The first page of a segment holds its stamp, in ASCII, padded with zeros; the shard's bytes begin after it."""
DIGEST = "xxh3_128"
"""The checksum of shards: XXH3, 128 bits, seed 0; in lower-case hex in seals and manifests."""
NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
"""What a namespace may be called: it is a folder's name in both tiers."""
PICKLE_MARK = b"\x80"
"""How a pickle begins: what a foreign client posts so is its metadata. Nobody on a node ever unpickles it."""


class ShardKind(StrEnum):
    DATA = "data"
    METADATA = "metadata"


@dataclass(frozen=True)
class Seal(Wire):
    """The commit of a shard: a JSON file beside its segment, renamed into place last and unlinked first.

    ``save`` names the save that the shard is part of: all shards of one save, and of no other, carry the same; "" for clients that do not say
    (a data shard of theirs that is younger than the metadata belongs to a save that has not ended; between nodes, more than ``SKEW_S`` younger). ``stamp`` stands in
    the segment's first page as well: bytes and seal of different writes are not taken for each other. ``origin`` is the node where it was
    written first. ``is_durable`` asks for the step to be drained to the object store. ``shard_meta`` is the header that a foreign client sent,
    returned unchanged.
    """

    namespace: str
    index: int
    step: int
    kind: ShardKind
    size: int
    digest: str
    stamp: str
    written_at: float
    save: str = ""
    origin: str = ""
    is_durable: bool = False
    shard_meta: str | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.namespace, self.step, self.index)


SKEW_S = 2.0
"""How far the clocks of a cluster's nodes may be apart, where nothing but time orders what a foreign client wrote."""


@dataclass(frozen=True)
class Holder(Wire):
    """A node from whose door a shard can be had."""

    node: str
    address: str
    port: int = PORT


@dataclass(frozen=True)
class StepFound(Wire):
    """Where a complete step is. ``shards[index]`` lists its holders in memory, nearest first: empty where only the object store has it.

    The metadata shard is the last of them, so ``len(shards) == world_size + 1``.
    """

    namespace: str
    step: int
    world_size: int
    save: str
    shards: tuple[tuple[Holder, ...], ...]
    is_in_memory: bool
    is_durable: bool


# ------------------------------------------------------------------------------------------------------ the object store


def shard_key(namespace: str, index: int, step: int, world_size: int) -> str:
    """The key of a shard below the store's checkpoints. It is that of AWS's package, whose readers find their own bytes there."""
    if index == world_size:
        return f"{namespace}/rank_0/step_{step}/metadata.metadata"
    return f"{namespace}/rank_{index}/step_{step}/checkpoint.pt"


def seal_key(namespace: str, index: int, step: int, world_size: int) -> str:
    """Beside a shard in the store: its seal, put when all its bytes are there. Whoever puts the last one of a step commits the step."""
    return shard_key(namespace, index, step, world_size).rpartition("/")[0] + (
        "/metadata.seal.json" if index == world_size else "/seal.json"
    )


def manifest_key(namespace: str, step: int) -> str:
    """The commit marker of a durable step: created, never overwritten, after all its shards; removed before any of them."""
    return f"{manifests_prefix(namespace)}{step:020d}.json"


def manifests_prefix(namespace: str) -> str:
    return f"{namespace}/manifests/"


def superseded_key(namespace: str, step: int, save: str) -> str:
    """Where the manifest of a step goes when training went back before it and on from there."""
    return f"{namespace}/superseded/{step:020d}-{save or 'foreign'}.json"


@dataclass(frozen=True)
class ManifestShard(Wire):
    index: int
    kind: ShardKind
    size: int
    digest: str


@dataclass(frozen=True)
class Manifest(Wire):
    """A durable step. ``shards`` is in order of index, the metadata shard last."""

    namespace: str
    step: int
    world_size: int
    save: str
    committed_at: float
    shards: tuple[ManifestShard, ...]
    format: int = 1

    @property
    def nbytes(self) -> int:
        return sum(shard.size for shard in self.shards)

    def to_json(self) -> bytes:
        return json.dumps(self.to_wire(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Manifest:
        """Raises ValueError."""
        return cls.from_wire(json.loads(text))


def manifest_of(seals: Iterable[Seal], step: int, *, at: float) -> Manifest | None:
    """The manifest of a step from the seals that stand beside its shards in the store; None while one is missing."""
    parts = [seal for seal in seals if seal.step == step]
    found = complete(parts).get(step)
    if found is None:
        return None
    world_size, save = found
    head = max(
        (one for one in parts if one.kind is ShardKind.METADATA and one.save == save and one.index == world_size),
        key=lambda one: one.written_at,
    )
    data = {one.index: one for one in parts if belongs(one, head) and one.index < world_size}
    shards = tuple(
        ManifestShard(one.index, one.kind, one.size, one.digest) for one in (*(data[i] for i in range(world_size)), head)
    )
    return Manifest(head.namespace, step, world_size, save, at, shards)


def manifest_step(key: str) -> int | None:
    """The step whose manifest a key is, or None."""
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if key.endswith(".json") and name.isdigit() else None


# ------------------------------------------------------------------------------------------------------ completeness


def complete(seals: Iterable[Seal]) -> dict[int, tuple[int, str]]:
    """Of one namespace: step → (world size, save) of every step whose metadata and data shards are all among ``seals``.

    ``seals`` are those of all nodes that can be asked now; replicas may be among them. Of several saves of a step the youngest complete one counts.
    """
    steps: dict[int, list[Seal]] = {}
    for seal in seals:
        steps.setdefault(seal.step, []).append(seal)
    found = ((step, _newest_save(parts)) for step, parts in steps.items())
    return {step: save for step, save in found if save is not None}


def belongs(data: Seal, metadata: Seal) -> bool:
    """Whether a data shard is part of the save that a metadata shard has ended."""
    if data.kind is not ShardKind.DATA or data.step != metadata.step or data.save != metadata.save:
        return False
    is_same_clock = bool(data.origin) and data.origin == metadata.origin
    return bool(data.save) or data.written_at <= metadata.written_at + (0.0 if is_same_clock else SKEW_S)


def _newest_save(parts: list[Seal]) -> tuple[int, str] | None:
    heads = sorted((one for one in parts if one.kind is ShardKind.METADATA), key=lambda one: one.written_at, reverse=True)
    for head in heads:
        held = {one.index for one in parts if belongs(one, head)}
        if len(held) >= head.index and held >= set(range(head.index)):
            return head.index, head.save
    return None


def shard_meta(digest_hex: str) -> str:
    """The header ``Shard-Meta`` of AWS's package for a digest."""
    told: dict[str, Any] = {"checksum": base64.b64encode(bytes.fromhex(digest_hex)).decode(), "algorithm": DIGEST}
    return json.dumps(told)
