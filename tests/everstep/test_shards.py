from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.shards import (
    NAMESPACE,
    SKEW_S,
    Manifest,
    Seal,
    ShardKind,
    belongs,
    complete,
    manifest_key,
    manifest_of,
    manifest_step,
    seal_key,
    shard_key,
    shard_meta,
    superseded_key,
)

STEP = 40


def shard(
    index: int, *, save: str = "s", at: float = 100.0, kind: ShardKind = ShardKind.DATA, origin: str = "n0", step: int = STEP
) -> Seal:
    digest = f"{hash((index, save, at, kind)) & (1 << 128) - 1:032x}"
    return Seal("ns", index, step, kind, 10, digest, f"{index}.{save}.{at}", at, save, origin)


def saved(world_size: int, *, save: str = "s", at: float = 100.0, step: int = STEP, origins: int = 1) -> list[Seal]:
    """A whole save: the metadata last."""
    data = [shard(index, save=save, at=at, origin=f"n{index % origins}", step=step) for index in range(world_size)]
    return [*data, shard(world_size, save=save, at=at + 0.5, kind=ShardKind.METADATA, step=step)]


@st.composite
def histories(draw) -> list[tuple[str, int, list[Seal]]]:
    """Saves of one step with names of their own, each with the shards that are left of it, oldest first."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    history = []
    for number, world_size in enumerate(sizes):
        whole = saved(world_size, save=f"save-{number}", at=100.0 + number)
        history.append((f"save-{number}", world_size, [one for one in whole if draw(st.integers(0, 9)) > 1]))
    return history


@given(histories(), st.randoms(use_true_random=False))
def test_the_youngest_save_that_is_all_there_is_the_one_that_counts(history, chance: random.Random) -> None:
    seals = [one for _, _, left in history for one in left]
    replicas = [replace(one, stamp=f"{one.stamp}-replica") for one in chance.sample(seals, len(seals) // 2)]
    mixed = [*seals, *replicas]
    chance.shuffle(mixed)
    whole = [(world_size, save) for save, world_size, left in history if len(left) == world_size + 1]
    assert complete(mixed) == ({STEP: whole[-1]} if whole else {})


@given(histories())
def test_a_manifest_names_shards_of_one_save_only_and_all_of_them(history) -> None:
    seals = [one for _, _, left in history for one in left]
    found = manifest_of(seals, STEP, at=7.0)
    whole = [(save, world_size, left) for save, world_size, left in history if len(left) == world_size + 1]
    if not whole:
        assert found is None
        return
    save, world_size, left = whole[-1]
    assert found is not None
    assert (found.save, found.world_size, found.committed_at) == (save, world_size, 7.0)
    assert [(one.index, one.digest, one.kind, one.size) for one in found.shards] == [
        (one.index, one.digest, one.kind, one.size) for one in left
    ]
    assert Manifest.from_json(found.to_json()) == found
    assert found.nbytes == 10 * (world_size + 1)


@given(st.integers(1, 5), st.data())
def test_a_step_with_anything_missing_is_never_complete(world_size: int, data) -> None:
    seals = saved(world_size, save=data.draw(st.sampled_from(["", "s"])))
    assert complete(seals) == {STEP: (world_size, seals[-1].save)}
    missing = data.draw(st.integers(0, world_size))
    del seals[missing]
    assert complete(seals) == {}
    assert manifest_of(seals, STEP, at=0.0) is None


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 8))
def test_shards_of_two_saves_are_never_put_together(before: int, after: int, posted: int) -> None:
    """A step is saved again by another world, and the second save ends after so many shards."""
    old, new = saved(before, save="old", at=100.0), saved(after, save="new", at=100.1)
    assert complete([*old, *new[:posted]])[STEP] == ((after, "new") if posted > after else (before, "old"))
    assert complete([*old[:-1], *new[:after]]) == {}


@settings(max_examples=200)
@given(st.integers(1, 4), st.integers(1, 4), st.floats(0.001, 60.0), st.integers(1, 3))
def test_a_client_that_names_no_saves_and_writes_over_a_step_mixes_nothing(
    before: int, after: int, later: float, origins: int
) -> None:
    """Every shard that arrives takes the place of its predecessor, in any world size; the step is whole again when its metadata has come.

    On one node not even a save that follows at once is mixed up; between nodes clocks have to differ by less than the saves.
    """
    if origins > 1 and later <= SKEW_S + 0.5:
        return
    held = {one.index: one for one in saved(before, save="", at=100.0, origins=origins)}
    again = saved(after, save="", at=100.5 + later, origins=origins)
    for one in again[:-1]:
        held[one.index] = one
        assert complete(held.values()).get(STEP) is None
    held[after] = again[-1]
    assert complete(held.values()) == {STEP: (after, "")}


def test_a_data_shard_that_is_younger_than_the_metadata_is_of_a_save_that_has_not_ended() -> None:
    head = shard(2, save="", at=100.0, kind=ShardKind.METADATA, origin="n0")
    assert belongs(shard(0, save="", at=100.0), head)
    assert not belongs(shard(0, save="", at=100.01), head)
    for origin in ("n1", ""):
        assert belongs(shard(0, save="", at=100.0 + SKEW_S, origin=origin), head)
        assert not belongs(shard(0, save="", at=100.01 + SKEW_S, origin=origin), head)
    assert belongs(shard(0, save="a", at=500.0), replace(head, save="a"))
    assert not belongs(shard(0, save="a"), head)
    assert not belongs(shard(0, save="", step=1), head)
    assert not belongs(replace(head, index=0), head)


def test_metadata_that_is_a_data_shard_elsewhere_ends_no_save() -> None:
    """World size 2 → 4 in one namespace: index 2 was metadata and becomes data."""
    old = saved(2, save="", at=100.0)
    new = saved(4, save="", at=200.0)
    held = {one.index: one for one in [*old, *new[:3]]}
    assert complete(held.values()) == {}
    assert complete([*held.values(), *new[3:]]) == {STEP: (4, "")}


@given(st.integers(0, 99), st.integers(0, 10**18), st.integers(1, 99))
def test_every_shard_and_every_seal_has_a_key_of_its_own(index: int, step: int, world_size: int) -> None:
    keys = {key(name, at, step, world_size) for key in (shard_key, seal_key) for name in ("a", "b") for at in range(world_size + 1)}
    assert len(keys) == 4 * (world_size + 1)
    assert shard_key("a", index, step, 10**3) != shard_key("a", index, step + 1, 10**3)


@given(st.integers(0, 10**19))
def test_a_manifests_key_says_its_step_and_sorts_by_it(step: int) -> None:
    assert manifest_step(manifest_key("a", step)) == step
    assert manifest_key("a", step) < manifest_key("a", step + 1)
    assert manifest_step(superseded_key("a", step, "x")) is None


@pytest.mark.parametrize(
    "key", ["a/manifests/", "a/manifests/x.json", "a/manifests/12", "a/manifests/-1.json", "a/manifests/1.json.tmp"]
)
def test_other_keys_are_no_manifests(key: str) -> None:
    assert manifest_step(key) is None


def test_the_header_of_the_aws_package_says_digest_and_algorithm() -> None:
    assert json.loads(shard_meta("00" * 15 + "ff")) == {"checksum": "AAAAAAAAAAAAAAAAAAAA/w==", "algorithm": "xxh3_128"}


@given(st.text(max_size=8))
def test_a_namespace_is_always_one_folder(name: str) -> None:
    if NAMESPACE.fullmatch(name):
        assert "/" not in name
        assert name not in {".", ".."}
        assert "\0" not in name
