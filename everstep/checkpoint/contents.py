"""The metadata shard of ours: what a step holds and which of its shards has each part, as JSON. Nothing of it is ever unpickled.

It does not say where in a shard a part lies: the shard does (``layout``), so that the metadata is the same bytes at every save of a state whose
shapes have not changed.

Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.errors import CheckpointMismatch, CheckpointUnreadable

FORMAT = 1


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor: where it begins in it, its shape, and the index of the shard that has it under (name, offsets)."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    shard: int


@dataclass(frozen=True)
class TensorContent:
    """``dtype`` is torch's word without its prefix: ``bfloat16``. The chunks cover the tensor without overlap."""

    dtype: str
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Contents:
    """``blobs``: name → shard. ``paths``: how the flat names came out of nested dictionaries and lists, name → keys from the outside in.

    ``program`` is for the program that saved, and told to nobody else.
    """

    world_size: int
    tensors: Mapping[str, TensorContent]
    blobs: Mapping[str, int]
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Raises CheckpointMismatch if a path or ``program`` holds what JSON cannot."""
        _require_plain_paths(self.paths)
        told = {
            "format": FORMAT,
            "world_size": self.world_size,
            "tensors": {
                name: [one.dtype, one.size, [[chunk.offsets, chunk.sizes, chunk.shard] for chunk in one.chunks]]
                for name, one in self.tensors.items()
            },
            "blobs": dict(self.blobs),
            "paths": dict(self.paths),
            "program": dict(self.program),
        }
        try:
            return json.dumps(told, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            message = f"what the state says of itself cannot be written as JSON: {error}"
            raise CheckpointMismatch(message) from error

    @classmethod
    def from_json(cls, text: bytes) -> Contents:
        """Raises CheckpointUnreadable."""
        try:
            told = json.loads(text)
            return cls(
                int(told["world_size"]),
                {name: _tensor(one) for name, one in told["tensors"].items()},
                {name: int(shard) for name, shard in told["blobs"].items()},
                {name: tuple(path) for name, path in told["paths"].items()},
                told.get("program", {}),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"the metadata was not written by Everstep's library, or is damaged: {error!r}"
            raise CheckpointUnreadable(message) from error


def _tensor(told: Any) -> TensorContent:
    dtype, size, chunks = told
    return TensorContent(
        str(dtype), tuple(size), tuple(Chunk(tuple(offsets), tuple(sizes), int(shard)) for offsets, sizes, shard in chunks)
    )


def _require_plain_paths(paths: Mapping[str, tuple[str | int, ...]]) -> None:
    for name, path in paths.items():
        if not all(isinstance(key, str) or type(key) is int for key in path):
            message = f"{name!r} lies under a key that is neither a string nor a number: {path!r}"
            raise CheckpointMismatch(message)
