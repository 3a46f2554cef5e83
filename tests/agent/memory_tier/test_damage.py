"""What somebody else does to a tier: files deleted or cut off under it, doubts of a reader, no descriptors left, names and numbers that would hurt others."""

from __future__ import annotations

import json
import resource
import shutil
import socket

import pytest

from agent.memory_tier.budget import MIB, Budget
from agent.memory_tier.seals import BadSeal
from agent.memory_tier.store import Sealing, Store
from everstep.shards import STAMP_BYTES, Seal, ShardKind, complete
from everstep.tiers import CopyStatus
from tests.agent.memory_tier.hands import leased, save_step, write_shard
from tests.checkpoint.tiers import memory_tiers, until

NEVER = {"EVERSTEP_MEMORY_TIER_SCRUB_S": "3600"}


@pytest.fixture
def store(shm):
    made = Store(shm / "a", node="a", budget=Budget(8 * MIB, available=lambda: 1 << 40, reserve=0), now=lambda: 1.0)
    made.adopt()
    return made


def seal(store, step, *, index=0, save="s", content=b"shard"):
    segment = store.take("ns", index, step, len(content))
    segment.body[: len(content)] = content
    return store.seal(segment, Sealing("ns", index, step, ShardKind.DATA, len(content), save=save))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def shard_file(node, step, index):
    return next((path for path in (node.folder / "ns/ns" / str(step)).glob(f"{index}-*") if path.suffix != ".json"), None)


def flip(path):
    with path.open("r+b") as file:
        file.seek(STAMP_BYTES)
        byte = file.read(1)
        file.seek(STAMP_BYTES)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damage", ["shard", "seal", "cut", "all"])
def test_what_is_deleted_under_a_store_is_given_up_and_costs_no_room(store, shm, damage):
    changes = []
    store.watch(changes.append)
    store.reserve("ns", 3, 1 << 20, 2)
    kept, hurt = seal(store, 1), seal(store, 2)
    (path,) = [path for path in (shm / "a/ns/ns/2").iterdir() if path.suffix != ".json"]
    if damage == "all":
        shutil.rmtree(shm / "a")
    elif damage == "cut":
        with path.open("r+b") as file:
            file.truncate(STAMP_BYTES)
    else:
        (path if damage == "shard" else path.with_name(path.name + ".json")).unlink()
    assert hurt in store.heal()
    assert set(store.seals()) == (set() if damage == "all" else {kept})
    assert changes[-1].status is CopyStatus.CORRUPT
    assert store.usage.used == sum(path.stat().st_size for path in files(shm / "a") if path.suffix != ".json")
    again = seal(store, 2)
    assert store.verify(again)


def test_a_shard_that_was_cut_off_is_found_by_looking_at_it_and_ends_no_process(store, shm):
    hurt = seal(store, 2, content=bytes(1 << 20))
    (path,) = [path for path in (shm / "a/ns/ns/2").iterdir() if path.suffix != ".json"]
    with path.open("r+b") as file:
        file.truncate(2 * STAMP_BYTES)
    assert not store.verify(hurt)
    assert store.find("ns", 0, 2) is None


def test_a_listener_that_fails_takes_no_sealed_shard_with_it(store):
    store.watch(lambda _: 1 / 0)
    kept = seal(store, 1)
    assert store.verify(kept)
    assert store.usage.spare == 0


@pytest.mark.parametrize("save", ["a/../../b", "a b", "ä", "x" * 201, "a\nb"])
def test_the_name_of_a_save_that_could_be_no_key_is_refused(store, save):
    with pytest.raises(BadSeal):
        seal(store, 1, save=save)


def test_a_step_that_says_to_have_very_many_shards_costs_nothing_to_look_at():
    head = Seal("ns", 10**15, 1, ShardKind.METADATA, 1, "0" * 32, "stamp", 1.0, save="s")
    assert complete([head]) == {}


def test_a_tier_whose_folder_is_deleted_has_its_shards_again_and_goes_on(tmp_path):
    with memory_tiers(tmp_path, 2, memory_mib=64, environment=NEVER) as tiers:
        save_step(tiers[0], 1)
        with tiers[0].talk() as ask:
            assert ask("wait", step=1, replicas=2, durable=False, seconds=20)["replicas"] == 2
        shutil.rmtree(tiers[0].folder)
        until(lambda: shard_file(tiers[0], 1, 0) and shard_file(tiers[0], 1, 1), "the other node has given the shards back")
        with tiers[0].talk() as ask:
            assert until(lambda: leased(ask, 0, 1, is_missing_ok=True), "it is lent again") == b"shard"
        save_step(tiers[0], 2)
        with tiers[0].talk() as ask:
            used = ask("status")["budget"]["used"]
        assert used == sum(
            path.stat().st_size for sub in ("ns", "spare") for path in files(tiers[0].folder / sub) if path.suffix != ".json"
        )


def test_a_reader_s_doubt_drops_a_bad_copy_at_once_and_a_good_one_never(tmp_path):
    with memory_tiers(tmp_path, 2, memory_mib=64, environment=NEVER) as tiers, tiers[0].talk() as ask:
        save_step(tiers[0], 1)
        assert ask("wait", step=1, replicas=2, durable=False, seconds=20)["replicas"] == 2
        assert ask("corrupt", index=0, step=1, save="s1") == {"is_corrupt": False}
        assert leased(ask, 0, 1) == b"shard"
        bad = shard_file(tiers[0], 1, 0)
        flip(bad)
        assert ask("corrupt", index=0, step=1, save="s1") == {"is_corrupt": True}
        assert ask("corrupt", index=7, step=1, save="s1") == {"is_corrupt": False}
        assert until(lambda: leased(ask, 0, 1, is_missing_ok=True), "it came back from the other node") == b"shard"


@pytest.mark.parametrize("asked", [{"index": 1 << 21}, {"index": 0, "step": 10**18}, {"index": 0, "save": "../x"}])
def test_names_and_numbers_that_would_hurt_others_are_refused_at_the_hand_over(tmp_path, asked):
    with memory_tiers(tmp_path, memory_mib=64) as tiers, tiers[0].talk() as ask:
        opened = ask("open", **{"step": 1, "nbytes": 10, "save": "s", "kind": "metadata"} | asked)
        answer = opened if "refused" in opened else ask("seal", segment=opened["segment"], nbytes=10)
        assert "refused" in answer
        assert ask("wait", step=1, replicas=5, durable=False, seconds=1e308).get("refused") or ask("status")["node"] == "n0"
        assert "seal" in write_shard(ask, 0, 1, b"shard")


def test_a_tier_that_had_no_descriptor_left_takes_conversations_again(tmp_path):
    with memory_tiers(tmp_path, memory_mib=64) as tiers:
        node = tiers[0]
        limits = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        waiting = []
        for path in (node.socket, node._control):
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].connect(str(path))
        waiting[0].sendall(json.dumps({"ask": "hello", "namespace": "open"}).encode() + b"\n")
        waiting[0].settimeout(0.5)
        with pytest.raises(TimeoutError):
            waiting[0].recv(1)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, limits)
        waiting[0].settimeout(20)
        assert b'"node"' in waiting[0].recv(4096)
        waiting[1].settimeout(20)
        assert b'"report"' in waiting[1].recv(4096)
        for connection in waiting:
            connection.close()
        save_step(node, 1)
