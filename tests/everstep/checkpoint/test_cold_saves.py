"""Ranks that write to the object store themselves while another save of the step is there, whole or in part: a manifest tells of its own bytes or is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from everstep.checkpoint.cold import Cold
from everstep.shards import Seal, ShardKind, seal_key, shard_key

BODIES = {"older": b"of the older save", "younger": b"of the younger save"}


def seal(save: str, index: int, *, world: int = 2) -> Seal:
    kind = ShardKind.METADATA if index == world else ShardKind.DATA
    body = BODIES[save]
    at = 1.0 if save == "older" else 2.0
    return Seal("ns", index, 10, kind, len(body), xxhash.xxh3_128_hexdigest(body), f"{save}.{index}", at, save=save)


def write(cold: Cold, save: str, *indices: int) -> None:
    for index in indices:
        cold.write(seal(save, index), memoryview(BODIES[save]))


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Cold]:
    made = Cold((tmp_path / "checkpoints").as_uri())
    yield made
    made.close()


def standing(cold: Cold, tmp_path: Path) -> str | None:
    manifest = cold.manifest("ns", 10)
    for shard in manifest.shards if manifest else ():
        body = (tmp_path / "checkpoints" / shard_key("ns", shard.index, 10, 2)).read_bytes()
        assert xxhash.xxh3_128_hexdigest(body) == shard.digest
    return manifest.save if manifest else None


class Killed(Exception):
    pass


class Dying(Cold):
    """Ends, as by SIGKILL, after the bytes of a shard and before its seal."""

    def _put(self, key: str, body: bytes | memoryview) -> None:
        if key.endswith("seal.json"):
            raise Killed
        super()._put(key, body)


class Slow(Cold):
    """Another save is committed while its bytes are on their way."""

    def _put(self, key: str, body: bytes | memoryview) -> None:
        if key.endswith("checkpoint.pt"):
            write(Cold(self.url), "younger", 0, 1, 2)
        super()._put(key, body)


def test_a_step_that_is_written_again_is_that_of_the_save_that_was_written_last(cold: Cold, tmp_path: Path) -> None:
    write(cold, "older", 0, 1, 2)
    assert standing(cold, tmp_path) == "older"
    write(cold, "younger", 0, 1, 2)
    assert standing(cold, tmp_path) == "younger"


def test_a_rank_that_dies_between_bytes_and_seal_leaves_no_seal_beside_bytes_of_another_save(cold: Cold, tmp_path: Path) -> None:
    write(cold, "older", 0, 1)
    with pytest.raises(Killed):
        write(Dying(cold.url), "younger", 1)
    assert not (tmp_path / "checkpoints" / seal_key("ns", 1, 10, 2)).exists()
    write(cold, "older", 2)
    assert standing(cold, tmp_path) is None


def test_bytes_that_come_after_another_save_was_committed_take_its_manifest_away(cold: Cold, tmp_path: Path) -> None:
    write(Slow(cold.url), "older", 1)
    assert standing(cold, tmp_path) is None
