"""What an earlier process of the tier has left: which files are shards, which are segments to be used again, and which are neither."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.memory_tier import ids, seals, segments
from agent.memory_tier.held import Held, stamp_fits
from agent.memory_tier.pool import Pool
from agent.memory_tier.segments import Segment
from everstep.shards import Seal


def shards(folder: Path, pool: Pool) -> Iterator[Held]:
    """Every shard whose seal is that of its bytes, as far as can be told without hashing them. Everything else below ``folder`` goes to the pool.

    Of two seals of the same shard and save the younger one counts: the other was about to go when the process ended.
    """
    for step in [path for space in _folders(folder) for path in _folders(space)]:
        kept: dict[tuple[int, str], Held] = {}
        for path in sorted(step.iterdir()):
            if path.suffix in {seals.SUFFIX, seals.DRAFT}:
                continue
            found = _shard(path, step)
            if found is None:
                _sweep(path, pool)
                continue
            key = (found.seal.index, found.seal.save)
            other = kept.get(key)
            kept[key], older = _younger_first(found, other) if other else (found, None)
            if older is not None:
                _sweep(older.segment.path, pool)
        _clean(step, {held.segment.path for held in kept.values()})
        yield from kept.values()


def lost(folder: Path, pool: Pool, present: Iterable[Held]) -> list[Seal]:
    """What somebody has deleted, or cut off, under this process; the folders are there again then. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pool.heal()
    return [held.seal for held in present if not (held.segment.is_whole() and seals.path_of(held.segment.path).exists())]


def spares(pool: Pool) -> None:
    """Segments that held nothing, or were being filled; the lock of whoever still writes into one keeps it from being used."""
    for path in list(pool.folder.iterdir()):
        segment = segments.found(path, path.name) if path.is_file() else None
        if segment is None:
            _remove(path)
        else:
            pool.adopt(segment)


def _younger_first(one: Held, other: Held) -> tuple[Held, Held]:
    return (one, other) if one.seal.written_at >= other.seal.written_at else (other, one)


def _shard(path: Path, step: Path) -> Held | None:
    if not path.is_file():
        return None
    try:
        seal = seals.read(seals.path_of(path))
    except seals.BadSeal:
        return None
    segment = segments.found(path, path.name.partition("-")[2])
    if segment is None or not _is_at_its_place(seal, path, step) or not stamp_fits(segment, seal):
        return None
    return Held(seal, segment, is_verified=False)


def _is_at_its_place(seal: Seal, path: Path, step: Path) -> bool:
    where = (step.parent.name, step.name, path.name.partition("-")[0])
    return where == (seal.namespace, str(seal.step), str(seal.index))


def _sweep(path: Path, pool: Pool) -> None:
    """The seal first, as always."""
    with contextlib.suppress(OSError):
        seals.remove(path)
    segment: Segment | None = None
    if path.is_file():
        name = path.name.partition("-")[2] or ids.fresh()
        segment = segments.found(path, name if not (pool.folder / name).exists() else ids.fresh())
    if segment is None:
        _remove(path)
        return
    segment.move(pool.folder / segment.id)


def _clean(step: Path, kept: set[Path]) -> None:
    """Drafts, and seals without a segment."""
    for path in list(step.iterdir()):
        if path not in kept and path not in {seals.path_of(one) for one in kept}:
            _remove(path)
    for folder in (step, step.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _folders(folder: Path) -> list[Path]:
    for path in list(folder.iterdir()):
        if not path.is_dir() or path.is_symlink():
            _remove(path)
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()
