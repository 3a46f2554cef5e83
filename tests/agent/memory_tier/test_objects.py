"""The object store on a real file system: every call is counted, errors are of three kinds, and an outage is an outage."""

from __future__ import annotations

import os
import threading

import pytest

from agent.memory_tier.objects import PART_BYTES, AlreadyThere, NotThere, Objects, StoreAway


@pytest.fixture
def objects(tmp_path):
    return Objects((tmp_path / "a store").as_uri(), {})


def test_what_is_put_can_be_had_whole_and_in_ranges(objects):
    body = os.urandom(PART_BYTES + 12345)
    objects.put("ns/rank_0/step_1/checkpoint.pt", memoryview(body))
    assert bytes(objects.get_range("ns/rank_0/step_1/checkpoint.pt", 0, len(body))) == body
    assert bytes(objects.get_range("ns/rank_0/step_1/checkpoint.pt", PART_BYTES - 5, 10)) == body[PART_BYTES - 5 : PART_BYTES + 5]
    assert objects.size("ns/rank_0/step_1/checkpoint.pt") == len(body)
    assert bytes(objects.get_range("ns/rank_0/step_1/checkpoint.pt", 7, 0)) == b""


def test_pieces_are_pulled_one_after_the_other_and_make_the_whole(objects):
    body = memoryview(os.urandom(3 * PART_BYTES))
    pulled = []

    def pieces():
        for start in range(0, len(body), 1 << 20):
            pulled.append(start)
            yield body[start : start + (1 << 20)]

    objects.put("large", body, pieces=pieces())
    assert bytes(objects.get_range("large", 0, len(body))) == body
    assert pulled == sorted(pulled)


def test_of_many_who_create_an_object_exactly_one_does(objects):
    won = []

    def create(name):
        try:
            objects.create("manifest", name.encode())
            won.append(name)
        except AlreadyThere:
            pass

    threads = [threading.Thread(target=create, args=(f"writer-{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [objects.look("manifest").decode()] == won


def test_what_is_not_there_is_told_apart_from_a_store_that_fails(objects, tmp_path):
    with pytest.raises(NotThere):
        objects.look("nothing")
    with pytest.raises(NotThere):
        objects.get_range("nothing", 0, 10)
    objects.delete("nothing")
    (tmp_path / "a store" / "checkpoints" / "folder").write_bytes(b"in the way")
    with pytest.raises(StoreAway):
        objects.put("folder/object", b"x")


def test_a_listing_names_what_lies_below_a_prefix_and_nothing_beside_it(objects):
    for key in ("ns/manifests/2.json", "ns/manifests/1.json", "ns-2/manifests/1.json", "ns/rank_0/x"):
        objects.put(key, b"x")
    assert objects.list("ns/manifests/") == ("ns/manifests/1.json", "ns/manifests/2.json")
    assert objects.list("nobody/") == ()


def test_each_kind_of_call_is_counted_apart(objects):
    objects.put("a", b"12345")
    objects.look("a")
    objects.get_range("a", 0, 3)
    objects.list("")
    objects.delete("a")
    assert objects.counts == {
        "reads": 1,
        "read_bytes": 3,
        "lookups": 1,
        "lists": 1,
        "writes": 1,
        "written_bytes": 5,
        "deletes": 1,
        "failures": 0,
    }


def test_an_outage_fails_every_call_and_changes_nothing(objects):
    objects.put("a", b"x")
    objects.is_out = True
    calls = [
        lambda: objects.put("a", b"y"),
        lambda: objects.create("b", b"y"),
        lambda: objects.look("a"),
        lambda: objects.get_range("a", 0, 1),
        lambda: objects.size("a"),
        lambda: objects.list(""),
        lambda: objects.delete("a"),
    ]
    for call in calls:
        with pytest.raises(StoreAway, match="outage"):
            call()
    assert objects.counts["failures"] == len(calls)
    objects.is_out = False
    assert objects.look("a") == b"x"
    assert objects.list("") == ("a",)


def test_a_node_without_a_store_says_so(tmp_path):
    objects = Objects(None, {})
    assert not objects.is_there
    with pytest.raises(StoreAway, match="EVERSTEP_OBJECT_STORE_URL"):
        objects.list("")
    with pytest.raises(ValueError, match="s3://BUCKET/PREFIX"):
        Objects("gopher://somewhere", {})


def test_what_a_killed_upload_left_is_swept_and_nothing_else(objects, tmp_path):
    objects.put("ns/a", b"x")
    folder = tmp_path / "a store" / "checkpoints" / "ns"
    (folder / "a#1").write_bytes(b"half")
    (folder / "ab#1").write_bytes(b"somebody else's")
    objects.sweep("ns/a")
    assert sorted(path.name for path in folder.iterdir()) == ["a", "ab#1"]
