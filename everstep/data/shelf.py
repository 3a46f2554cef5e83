"""Batches kept in a node's shared memory, where they outlive the process that has prepared them.

A rank prepares its next batches ahead. When it dies, the process that takes its rank on this node finds them there instead of reading its
samples again. An entry is a file of its own, there in one piece or not at all (rename), and tells by its checksum whether it is whole. What it
holds follows from its name alone: the data, their order, the first sample's place in it and the number of samples.

Entries behind the committed step are taken away; the folder goes with its job, which is the agent's to do. Nothing here is ever missed: what
cannot be kept, or has gone, is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import torch

MOST_BYTES = 512 << 20
"""Of one job on one node."""
_LEAST_FREE = 4
"""An entry may be at most so large a part of the memory that is free."""
_HEAD = struct.Struct(">8sIQ")
_MAGIC = b"everstp1"


class Shelf:
    """``fingerprint`` names data and order, so that entries of others in the same folder are not mistaken for ours. Thread-safe."""

    def __init__(self, folder: Path, fingerprint: str, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._most_bytes = most_bytes

    def take(self, first: int, count: int) -> tuple[Any] | None:
        """The batch of ``count`` samples from place ``first`` on, in a tuple of one; None if it is not here, or not whole."""
        path = self._path(first, count)
        try:
            written = path.read_bytes()
        except OSError:
            return None
        payload = _checked(written)
        if payload is None:
            path.unlink(missing_ok=True)
            return None
        return (torch.load(io.BytesIO(payload), weights_only=True),)

    def put(self, first: int, count: int, batch: Any) -> bool:
        """False if it is not kept: there is no room, or it holds what cannot be read back without running code."""
        path = self._path(first, count)
        if path.exists():
            return True
        payload = packed(batch)
        if payload is None or not self._has_room(len(payload)):
            return False
        draft = path.with_name(f".{os.getpid()}-{path.name}")
        try:
            draft.write_bytes(_HEAD.pack(_MAGIC, zlib.crc32(payload), len(payload)) + payload)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            return False
        return True

    def clear_before(self, place: int) -> None:
        """The samples before ``place`` have been trained on; what somebody was about to keep of them, and may have died in, goes too."""
        entries = self._folder.glob(f"{self._fingerprint}-*.batch")
        for path in (*entries, *self._folder.glob(f".*-{self._fingerprint}-*.batch")):
            first, count = path.stem.rsplit("-", 2)[1:]
            if int(first) + int(count) <= place:
                path.unlink(missing_ok=True)

    def _path(self, first: int, count: int) -> Path:
        return self._folder / f"{self._fingerprint}-{first}-{count}.batch"

    def _has_room(self, nbytes: int) -> bool:
        total = 0
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
            seen = os.statvfs(self._folder)
            return total + nbytes <= self._most_bytes and nbytes * _LEAST_FREE <= seen.f_bavail * seen.f_frsize
        return False


def packed(batch: Any) -> bytes | None:
    """None for what holds more than tensors, numbers, words and their lists, tuples and dicts."""
    blob = io.BytesIO()
    try:
        torch.save(batch, blob)
        torch.load(io.BytesIO(blob.getvalue()), weights_only=True)
    except Exception:  # noqa: BLE001, what pickling somebody's objects raises is theirs
        return None
    return blob.getvalue()


def fingerprint(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:20]


def _checked(written: bytes) -> bytes | None:
    """What stands behind the head, if it is what was written."""
    if len(written) < _HEAD.size:
        return None
    magic, checksum, length = _HEAD.unpack_from(written)
    payload = written[_HEAD.size :]
    whole = magic == _MAGIC and len(payload) == length and zlib.crc32(payload) == checksum
    return payload if whole else None
