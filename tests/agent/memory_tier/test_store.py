"""The store on real shared memory: what is sealed can be had, what is not cannot, and nothing is served that is not what was sealed."""

from __future__ import annotations

import fcntl
import json
import os
import threading

import pytest
import xxhash

from agent.memory_tier.store import Corrupt, Gone, NoRoom, Sealing
from everstep.shards import STAMP_BYTES, ShardKind
from everstep.tiers import CopyStatus

KIB = 1024


def save(store, step, content, *, namespace="ns", index=0, kind=ShardKind.DATA, **more):
    segment = store.take(namespace, index, step, len(content))
    segment.body[: len(content)] = content
    return store.seal(segment, Sealing(namespace, index, step, kind, len(content), **more))


def bytes_of(store, seal):
    with store.read(seal) as reading:
        content = bytes(reading.view)
        reading.check()
    return content


def files(shm):
    return sorted(str(path.relative_to(shm)) for path in shm.rglob("*") if path.is_file())


def flip(shm, seal, at=100):
    path = next((shm / "ns" / seal.namespace / str(seal.step)).glob(f"{seal.index}-*[!n]"))
    with path.open("r+b") as stream:
        stream.seek(STAMP_BYTES + at)
        byte = stream.read(1)
        stream.seek(STAMP_BYTES + at)
        stream.write(bytes([byte[0] ^ 1]))


# ------------------------------------------------------------ sealing


def test_what_is_sealed_can_be_read_and_has_its_digest(store):
    content = os.urandom(70 * KIB)
    seal = save(store, 10, content)
    assert store.find("ns", 0, 10) == seal
    assert bytes_of(store, seal) == content
    assert seal.digest == xxhash.xxh3_128(content).hexdigest()
    assert (seal.size, seal.origin, seal.kind) == (len(content), "n1", ShardKind.DATA)


def test_an_open_segment_is_not_to_be_found(store):
    segment = store.take("ns", 0, 10, 100)
    segment.body[:5] = b"hello"
    assert store.find("ns", 0, 10) is None
    assert store.seals() == ()


def test_an_empty_shard_is_a_shard(store):
    assert bytes_of(store, save(store, 1, b"")) == b""


def test_bytes_without_the_promised_digest_are_not_sealed(store):
    segment = store.take("ns", 0, 10, 5)
    segment.body[:5] = b"hello"
    with pytest.raises(Corrupt, match="promised"):
        store.seal(segment, Sealing("ns", 0, 10, ShardKind.DATA, 5, digest="0" * 32))
    store.abandon(segment)
    assert store.find("ns", 0, 10) is None


def test_more_bytes_than_the_segment_has_cannot_be_sealed(store):
    segment = store.take("ns", 0, 10, 5)
    with pytest.raises(ValueError, match="cannot be in a segment"):
        store.seal(segment, Sealing("ns", 0, 10, ShardKind.DATA, segment.capacity + 1))


def test_an_abandoned_segment_is_used_again(store):
    first = store.take("ns", 0, 10, 100)
    store.abandon(first)
    assert store.take("ns", 0, 11, 100).id == first.id


def test_the_segment_of_a_dropped_shard_is_used_again_without_its_stamp(store, shm):
    seal = save(store, 10, b"a" * 100)
    store.drop("ns", step=10, why="test")
    segment = store.take("ns", 0, 11, 100)
    assert seal.stamp.startswith(segment.id)
    assert not segment.stamp
    assert not (shm / "ns" / "ns").exists()


def test_a_shard_saved_again_by_the_same_save_replaces_the_first(store):
    save(store, 10, b"old", save="a")
    new = save(store, 10, b"new", save="a")
    assert store.seals() == (new,)
    assert bytes_of(store, store.find("ns", 0, 10)) == b"new"


def test_an_older_replica_does_not_replace_a_younger_shard(store):
    new = save(store, 10, b"new", save="a", written_at=50.0)
    assert save(store, 10, b"old", save="a", written_at=40.0) == new
    assert bytes_of(store, store.find("ns", 0, 10)) == b"new"


def test_another_save_of_a_step_stands_beside_the_first(store):
    first = save(store, 10, b"one", save="a")
    second = save(store, 10, b"two", save="b")
    assert store.find("ns", 0, 10) == second
    assert store.find("ns", 0, 10, "a") == first
    assert bytes_of(store, first) == b"one"


def test_a_save_that_a_complete_one_has_superseded_goes(store):
    save(store, 10, b"one", save="a")
    second = save(store, 10, b"two", save="b")
    store.retain("ns", keep=3, newest_complete=10, saves={10: "b"})
    assert store.seals() == (second,)


# ------------------------------------------------------------ reading


def test_a_shard_under_a_reader_is_not_overwritten(store):
    seal = save(store, 10, b"a" * 100)
    with store.read(seal) as reading:
        store.drop("ns", step=10, why="test")
        other = store.take("ns", 0, 11, 100)
        other.body[:100] = b"b" * 100
        assert bytes(reading.view) == b"a" * 100
        reading.check()
    assert not seal.stamp.startswith(other.id)
    assert seal.stamp.startswith(store.take("ns", 0, 12, 100).id)


def test_a_leased_shard_is_not_overwritten_until_its_descriptor_is_closed(store):
    seal = save(store, 10, b"a" * 100)
    descriptor = store.lease(seal)
    store.drop("ns", step=10, why="test")
    assert not seal.stamp.startswith(store.take("ns", 0, 11, 100).id)
    assert os.pread(descriptor, 100, STAMP_BYTES) == b"a" * 100
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(descriptor, b"x", STAMP_BYTES)
    os.close(descriptor)
    assert seal.stamp.startswith(store.take("ns", 0, 12, 100).id)


def test_a_segment_that_a_writer_has_locked_is_not_given_to_another(store):
    first = store.take("ns", 0, 10, 100)
    descriptor = first.open_descriptor(is_writable=True)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    store.abandon(first)
    assert store.take("ns", 0, 11, 100).id != first.id
    os.close(descriptor)
    assert store.take("ns", 0, 12, 100).id == first.id


def test_a_lease_waits_for_the_writer_to_let_go(store):
    seal = save(store, 10, b"a" * 100)
    segment = store._held["ns"][seal.stamp].segment
    descriptor = segment.open_descriptor(is_writable=True)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    leases = []
    asking = threading.Thread(target=lambda: leases.append(store.lease(seal)))
    asking.start()
    os.close(descriptor)
    asking.join()
    assert os.pread(leases[0], 1, STAMP_BYTES) == b"a"
    os.close(leases[0])


def test_what_is_gone_cannot_be_read(store):
    seal = save(store, 10, b"a")
    store.drop("ns", why="test")
    with pytest.raises(Gone):
        store.read(seal)
    with pytest.raises(Gone):
        store.lease(seal)


# ------------------------------------------------------------ adopting


def test_another_process_finds_what_was_sealed_and_serves_it_after_hashing(make_store):
    seal = save(make_store(), 10, b"a" * 5000)
    later = make_store()
    assert later.seals() == ()
    assert later.unverified() == (seal,)
    assert later.find("ns", 0, 10) == seal
    assert later.seals() == (seal,)
    assert bytes_of(later, seal) == b"a" * 5000


def test_adoption_counts_the_bytes_that_are_there(make_store):
    before = make_store()
    save(before, 10, b"a" * 5000)
    before.abandon(before.take("ns", 0, 11, 100_000))
    assert make_store().usage == before.usage


def test_a_segment_that_was_being_filled_is_a_spare_for_the_next_process(make_store):
    open_one = make_store().take("ns", 0, 10, 100)
    assert make_store().take("ns", 0, 10, 100).id == open_one.id


def test_what_a_flipped_bit_made_of_a_shard_is_not_served(make_store, shm):
    told = []
    seal = save(make_store(), 10, b"a" * 5000)
    flip(shm, seal)
    later = make_store()
    later.watch(told.append)
    assert later.find("ns", 0, 10) is None
    assert [(change.status, change.seal) for change in told] == [(CopyStatus.CORRUPT, seal)]
    assert later.corruptions == 1
    assert files(shm) == [f"spare/{seal.stamp.partition('.')[0]}"]


def test_of_two_saves_the_older_is_found_when_the_younger_is_corrupt(make_store, shm):
    before = make_store()
    good = save(before, 10, b"a" * 5000, save="a", written_at=1.0)
    bad = save(before, 10, b"b" * 5000, save="b", written_at=2.0)
    path = before._held["ns"][bad.stamp].segment.path
    with path.open("r+b") as stream:
        stream.seek(STAMP_BYTES)
        stream.write(b"x")
    assert make_store().find("ns", 0, 10) == good


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 8192])
def test_a_truncated_segment_is_no_shard(make_store, shm, length):
    seal = save(make_store(), 10, b"a" * 9000)
    os.truncate(next((shm / "ns/ns/10").glob("*[!n]")), length)
    later = make_store()
    assert later.unverified() == ()
    assert later.find("ns", 0, 10) is None
    assert seal.digest not in "".join(files(shm))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "{}",
        "\x00" * 50,
        '{"namespace": "ns"}',
        "[" * 5000,
        json.dumps({"namespace": 1, "index": "0"}),
    ],
)
def test_a_seal_that_says_nothing_is_none(make_store, shm, text):
    save(make_store(), 10, b"a" * 100)
    next((shm / "ns/ns/10").glob("*.json")).write_text(text)
    assert make_store().unverified() == ()
    assert all(name.startswith("spare/") for name in files(shm))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("size", -1),
        ("size", 10**9),
        ("size", True),
        ("size", "100"),
        ("step", 11),
        ("index", 1),
        ("namespace", "other"),
        ("namespace", "../x"),
        ("stamp", "another.stamp"),
        ("stamp", ""),
        ("digest", "zz"),
        ("digest", None),
        ("written_at", "now"),
        ("written_at", float("nan")),
        ("kind", "nonsense"),
        ("shard_meta", 7),
    ],
)
def test_a_seal_of_something_else_is_none(make_store, shm, member, value):
    save(make_store(), 10, b"a" * 100)
    path = next((shm / "ns/ns/10").glob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), member: value}))
    assert make_store().unverified() == ()
    assert all(name.startswith("spare/") for name in files(shm))


def test_leftovers_of_every_kind_are_swept(make_store, shm):
    kept = save(make_store(), 10, b"a" * 100)
    place = shm / "ns/ns/10"
    (place / "1-abc.json").write_text("{}")
    (place / "1-abc.json.draft").write_text("{}")
    (place / "folder").mkdir()
    (place / "folder" / "x").write_text("x")
    (place / "garbage").write_text("x")
    (place / "2-cafe").write_bytes(b"\0" * 8192)
    (shm / "ns/file").write_text("x")
    (shm / "ns/ns/file").write_text("x")
    (shm / "ns/empty").mkdir()
    (shm / "spare/tiny").write_text("x")
    later = make_store()
    assert later.find("ns", 0, 10) == kept
    assert len(files(shm)) == 3
    assert "spare/cafe" in files(shm)
    assert later.take("ns", 0, 11, 1000).id == "cafe"


def test_of_a_shard_that_was_being_replaced_the_younger_one_is_adopted(make_store, shm):
    before = make_store()
    old = save(before, 10, b"old", save="a")
    kept = {path.name: path.read_bytes() for path in (shm / "ns/ns/10").iterdir()}
    new = save(before, 10, b"new", save="a")
    for name, content in kept.items():  # as if the process had been killed after the commit, before the old one went
        (shm / "ns/ns/10" / name).write_bytes(content)
    later = make_store()
    assert later.find("ns", 0, 10) == new != old
    assert len(later.seals()) == 1


# ------------------------------------------------------------ room


def test_what_the_budget_cannot_hold_is_refused_in_words(make_store):
    small = make_store(64 * KIB)
    with pytest.raises(NoRoom, match=r"shard 0 of step 10 of namespace ns: .*InstanceMemoryAllocationPercentage"):
        small.take("ns", 0, 10, 100 * KIB)
    assert small.usage.refusals == 1
    assert small.usage.used == 0


def test_a_tier_that_is_off_says_so(make_store):
    with pytest.raises(NoRoom, match="off"):
        make_store(0).take("ns", 0, 10, 1)


def test_memory_that_other_programs_need_is_left_to_them(shm, make_store):
    store = make_store(64 * KIB, available=lambda: 10 * KIB)
    with pytest.raises(NoRoom, match="available"):
        store.take("ns", 0, 10, 20 * KIB)
    assert files(shm) == []


def test_a_full_file_system_is_a_refusal_and_leaves_nothing(make_store, shm):
    store = make_store(1 << 50, available=lambda: 1 << 60)
    with pytest.raises(NoRoom, match="No space left"):
        store.take("ns", 0, 10, 1 << 45)
    assert files(shm) == []
    assert store.usage.used == 0


def test_the_newest_complete_step_gives_way_to_nothing(make_store):
    store = make_store(24 * KIB)
    save(store, 10, b"a" * 8 * KIB)
    store.retain("ns", keep=1, newest_complete=10)
    save(store, 20, b"b" * 8 * KIB)
    with pytest.raises(NoRoom):
        store.take("ns", 0, 30, 8 * KIB)
    assert {seal.step for seal in store.seals()} == {10, 20}


def test_older_steps_give_way_to_a_save(make_store):
    store = make_store(40 * KIB)
    told = []
    store.watch(told.append)
    for step in (10, 20, 30):
        save(store, step, bytes([step]) * 8 * KIB)
        store.retain("ns", keep=3, newest_complete=step)
    save(store, 40, b"d" * 8 * KIB)
    assert {seal.step for seal in store.seals()} == {20, 30, 40}
    assert [(change.seal.step, change.why) for change in told if change.status is CopyStatus.DROPPED] == [
        (10, "made room for namespace ns")
    ]


def test_nothing_gives_way_while_no_complete_step_is_known(make_store):
    store = make_store(40 * KIB)
    for step in (10, 20, 30):
        save(store, step, bytes([step]) * 8 * KIB)
    with pytest.raises(NoRoom):
        store.take("ns", 0, 40, 8 * KIB)
    assert len(store.seals()) == 3


def test_a_reserve_makes_segments_once_and_they_go_round(store):
    assert store.reserve("ns", 0, 8 * KIB, 3) == (3, None)
    used = store.usage.used
    for step in range(10):
        save(store, step, b"x" * 8 * KIB)
        store.retain("ns", keep=2, newest_complete=step)
    assert store.usage.used == used
    assert store.reserve("ns", 0, 8 * KIB, 3) == (1, None)
    assert store.usage.used == used


def test_a_reserve_that_cannot_be_had_whole_says_why(make_store):
    store = make_store(40 * KIB)
    count, why = store.reserve("ns", 0, 8 * KIB, 5)
    assert count == 3
    assert "free" in why


def test_what_is_reserved_for_a_shard_is_left_to_it(store):
    store.reserve("ns", 0, 8 * KIB, 1)
    other = store.take("ns", 1, 10, 8 * KIB)
    mine = store.take("ns", 0, 10, 8 * KIB)
    assert mine.claim == ("ns", 0)
    assert other.claim is None


def test_what_nobody_reserves_any_more_is_anybodys(store):
    store.reserve("ns", 0, 8 * KIB, 1)
    store.unclaim("ns", 0)
    assert store.take("ns", 1, 10, 8 * KIB).claim is None


def test_a_shard_whose_size_has_changed_takes_the_room_of_what_was_reserved_for_the_old_one(make_store):
    """A resized job: its older steps do not go before its useless spares do."""
    store = make_store(20 << 20)
    save(store, 10, b"x" * KIB)
    store.retain("ns", keep=3, newest_complete=20)
    store.reserve("ns", 0, 8 << 20, 2)
    save(store, 20, b"x" * (4 << 20))
    save(store, 30, b"x" * (4 << 20))
    assert {seal.step for seal in store.seals()} == {10, 20, 30}


def test_spares_of_another_size_give_way(make_store):
    store = make_store(40 * KIB)
    store.abandon(store.take("ns", 0, 10, 8 * KIB))
    store.abandon(store.take("ns", 0, 10, 12 * KIB))
    store.take("ns", 0, 20, 30 * KIB)
    assert store.usage.used <= 40 * KIB


def test_a_smaller_cap_takes_the_oldest_first_and_the_newest_complete_last(make_store):
    store = make_store(64 * KIB)
    for step in (10, 20, 30, 40):
        save(store, step, b"x" * 8 * KIB)
    store.retain("ns", keep=4, newest_complete=20)
    gone = store.resize(24 * KIB)
    assert [seal.step for seal in gone] == [10, 30]
    assert {seal.step for seal in store.seals()} == {20, 40}
    assert store.usage.used <= 24 * KIB
    assert [seal.step for seal in store.resize(0)] == [40, 20]
    assert store.usage.used == 0


def test_memory_under_a_reader_is_given_back_when_it_has_read(make_store):
    store = make_store(64 * KIB)
    descriptor = store.lease(save(store, 10, b"a" * 8 * KIB))
    store.resize(0)
    assert store.usage.used == 12 * KIB
    assert os.pread(descriptor, 1, STAMP_BYTES) == b"a"
    os.close(descriptor)
    store.tidy()
    assert store.usage.used == 0


# ------------------------------------------------------------ many at once


def test_threads_that_save_read_and_retire_at_once_see_only_whole_shards(make_store):
    store = make_store(2 << 20)
    wrong = []

    def write(index):
        for step in range(40):
            save(store, step, bytes([step]) * 16 * KIB, index=index)
            store.retain("ns", keep=2, newest_complete=step - 1)

    def read():
        while any(thread.is_alive() for thread in writers):
            for seal in store.seals("ns"):
                try:
                    content = bytes_of(store, seal)
                except Gone:
                    continue
                if content != bytes([seal.step]) * 16 * KIB:
                    wrong.append(seal)

    writers = [threading.Thread(target=write, args=(index,)) for index in range(3)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in (*writers, *readers):
        thread.join()
    assert wrong == []
    assert all(store.verify(seal) for seal in store.seals())
