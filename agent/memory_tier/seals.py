"""Seals on disk: ``<segment>.json`` beside its segment. The rename of one commits a shard; it is unlinked before a byte of the shard changes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from everstep.shards import NAMESPACE, Seal

SUFFIX = ".json"
DRAFT = ".draft"
_HEX = re.compile(r"[0-9a-f]{32}")
_LONGEST = 1 << 20
MOST_INDEX = 1 << 20
"""The index of a metadata shard says how many others a step has, on which every node counts."""
_SAVE = re.compile(r"[A-Za-z0-9_.:+-]{0,200}")
"""What a save may be called: it is part of a key of the object store, and goes into headers."""


class BadSeal(ValueError):
    """A file that is called a seal says nothing that one can rely on; the words say what is wrong."""


def path_of(segment: Path) -> Path:
    return segment.with_name(segment.name + SUFFIX)


def write(segment: Path, seal: Seal) -> None:
    """Commits. Raises OSError; the draft that is left then is swept at the next start."""
    path = path_of(segment)
    draft = path.with_name(path.name + DRAFT)
    draft.write_text(json.dumps(seal.to_wire(), separators=(",", ":")))
    draft.replace(path)


def remove(segment: Path) -> None:
    path_of(segment).unlink(missing_ok=True)


def read(path: Path) -> Seal:
    """Raises BadSeal."""
    try:
        with path.open("rb") as stream:
            told = json.loads(stream.read(_LONGEST))
        if not isinstance(told, dict):
            message = f"{path.name} is no JSON object"
            raise BadSeal(message)
        return checked(Seal.from_wire(told))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        message = f"{path.name}: {error}"
        raise BadSeal(message) from error


def checked(seal: Seal) -> Seal:
    """The seal, if every member is of its type and within its bounds: others wrote it. Raises BadSeal."""
    numbers: tuple[object, ...] = (seal.index, seal.step, seal.size)
    if not all(_is_count(one) for one in numbers):
        message = f"index, step and size must be whole numbers from 0 on: {numbers}"
        raise BadSeal(message)
    if seal.index > MOST_INDEX or not _SAVE.fullmatch(str(seal.save)):
        message = f"index {seal.index} or save {seal.save!r} is none"
        raise BadSeal(message)
    meta = "" if seal.shard_meta is None else seal.shard_meta
    texts: tuple[object, ...] = (seal.namespace, seal.digest, seal.stamp, seal.save, seal.origin, meta)
    moment: object = seal.written_at
    if not all(isinstance(one, str) for one in texts) or not isinstance(moment, int | float) or not math.isfinite(moment):
        message = "a member is of another type than a seal's"
        raise BadSeal(message)
    if not NAMESPACE.fullmatch(seal.namespace) or not _HEX.fullmatch(seal.digest) or not seal.stamp:
        message = f"namespace {seal.namespace!r}, digest {seal.digest!r} or stamp {seal.stamp!r} is none"
        raise BadSeal(message)
    return seal


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
