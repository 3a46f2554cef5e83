from __future__ import annotations

from dataclasses import dataclass, replace

import obstore
import pytest

from everstep.shards import Manifest, ManifestShard, ShardKind, manifest_key, seal_key, shard_key, superseded_key
from tests.workers.test_settings import GIVEN
from workers import objects
from workers.settings import Settings


@pytest.fixture
def settings(tmp_path) -> Settings:
    return replace(Settings.from_environ(GIVEN), object_store_url=(tmp_path / "a store").as_uri())


@pytest.fixture
def here(settings) -> objects.Objects:
    return objects.connect(settings)


def durable(here: objects.Objects, step: int, *, world_size: int = 2, namespace: str = "ns") -> Manifest:
    """A step as drained: shards, their seals, the manifest last."""
    shards = tuple(
        ManifestShard(index, ShardKind.METADATA if index == world_size else ShardKind.DATA, 5 + index, "d")
        for index in range(world_size + 1)
    )
    for shard in shards:
        obstore.put(here.store, shard_key(namespace, shard.index, step, world_size), b"x" * shard.size)
        obstore.put(here.store, seal_key(namespace, shard.index, step, world_size), b"{}")
    manifest = Manifest(namespace, step, world_size, "save", 1.0, shards)
    obstore.put(here.store, manifest_key(namespace, step), manifest.to_json())
    return manifest


def left(here: objects.Objects) -> list[str]:
    return sorted(entry["path"] for chunk in obstore.list(here.store) for entry in chunk)


def test_a_durable_step_is_known_by_its_manifest(here):
    assert here.manifest("ns", 7) is None
    written = durable(here, 7)
    assert here.manifest("ns", 7) == written
    assert here.has_manifest("ns", 7)
    assert not here.has_manifest("ns", 8)


def test_what_is_no_manifest_makes_no_step_durable(here):
    obstore.put(here.store, manifest_key("ns", 7), b"{torn")
    assert here.manifest("ns", 7) is None


def test_removing_a_step_leaves_nothing_of_it_and_all_of_the_others(here):
    durable(here, 7)
    durable(here, 8)
    durable(here, 7, namespace="ns2")
    before = left(here)
    here.remove("ns", 7, 2)
    assert [key for key in before if key not in left(here)] == sorted(
        [manifest_key("ns", 7)] + [key("ns", index, 7, 2) for index in range(3) for key in (shard_key, seal_key)]
    )
    here.remove("ns", 7, 2)
    assert here.manifest("ns", 8) is not None
    assert here.manifest("ns2", 7) is not None


def test_manifests_of_saves_of_the_step_that_training_has_left_behind_go_with_it(here):
    durable(here, 7)
    for step, save in ((7, "a"), (7, ""), (70, "b")):
        obstore.put(here.store, superseded_key("ns", step, save), b"{}")
    here.remove("ns", 7, 2)
    assert left(here) == [superseded_key("ns", 70, "b")]


def test_shards_that_a_larger_world_left_at_the_same_step_go_as_well(here):
    durable(here, 7, world_size=4)
    durable(here, 7, world_size=2)
    here.remove("ns", 7, None)
    assert left(here) == []


class Cut(Exception):
    """The worker dies."""


@dataclass
class Dying(objects.Objects):
    """Dies before the deletion of that number."""

    before: int = 0

    def _delete(self, keys: list[str]) -> None:
        if self.calls.get("delete", 0) == self.before:
            raise Cut
        super()._delete(keys)


@pytest.mark.parametrize("before", range(3))
def test_a_removal_that_is_cut_short_never_leaves_a_manifest_without_its_shards(here, before):
    durable(here, 7)
    with pytest.raises(Cut):
        Dying(here.url, here.open, before=before).remove("ns", 7, 2)
    manifest = here.manifest("ns", 7)
    assert (manifest is not None) == (before == 0)
    assert manifest is None or all(obstore.head(here.store, shard_key("ns", one.index, 7, 2)) for one in manifest.shards)
    here.remove("ns", 7, 2)
    assert left(here) == []


@dataclass
class Racing(objects.Objects):
    """A drain commits the step just after its seals were deleted."""

    committed: Manifest | None = None

    def _delete(self, keys: list[str]) -> None:
        super()._delete(keys)
        if self.committed is not None and keys and keys[0].endswith("seal.json"):
            obstore.put(self.store, manifest_key("ns", 7), self.committed.to_json())


def test_a_step_that_a_drain_commits_while_it_is_removed_is_taken_back_if_shards_are_missing(here):
    Racing(here.url, here.open, committed=durable(here, 7)).remove("ns", 7, 2)
    assert here.manifest("ns", 7) is None


def test_a_store_that_cannot_be_reached_is_said_to_be_away_in_words(settings):
    nobody = replace(settings, object_store_url="s3://bucket", s3_endpoint_url="http://127.0.0.1:9", environ=KEYS)
    here = objects.connect(nobody)
    with pytest.raises(objects.StoreAway, match="head at s3://bucket/checkpoints failed"):
        here.has_manifest("ns", 1)


def test_a_folder_that_cannot_be_written_is_said_to_be_away_too(settings, tmp_path):
    (tmp_path / "a store").write_text("a file")
    with pytest.raises(objects.StoreAway):
        objects.connect(settings).manifest("ns", 1)


def test_every_call_is_counted_by_its_verb(here):
    durable(here, 7)
    here.has_manifest("ns", 7)
    here.remove("ns", 7, 2)
    assert here.calls == {"head": 1, "get": 2, "list": 2, "delete": 3}


def test_exports_go_beside_the_checkpoints(settings):
    url = objects.exports_url(settings.object_store_url, "job-1", 400, "dcp")
    assert url == settings.object_store_url + "/exports/job-1/400/dcp"


KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
