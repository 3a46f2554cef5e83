"""The library's tiers without ranks: the object store's commits, refusals, what an absent tier means."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from everstep.checkpoint.cold import Cold
from everstep.checkpoint.contents import Contents
from everstep.checkpoint.copies import digest_of
from everstep.checkpoint.placing import Part, Whose, write_metadata, write_shard
from everstep.checkpoint.tiers import Tiers
from everstep.errors import CheckpointMismatch, SaveRefused, TierAway
from everstep.shards import Seal, ShardKind, manifest_key, superseded_key
from tests.checkpoint.tiers import memory_tiers, until


def only_store(tmp_path: Path) -> Tiers:
    return Tiers.from_environment({}, EVERSTEP_DURABLE_URL=(tmp_path / "checkpoints").as_uri(), EVERSTEP_NAMESPACE="ns")


def saved(tiers: Tiers, step: int, save: str, *, ranks: int = 2, durable: bool = True, filling: bytes = b"x") -> None:
    for rank in range(ranks):
        write_shard(tiers, Whose(step, rank, save, durable), [Part("blob", None, filling * 100)])
    write_metadata(tiers, Whose(step, ranks, save, durable), Contents(ranks, {}, {"blob": 0}).to_json())


def seal_of(index: int, body: bytes, *, step: int = 1, save: str = "s", kind: ShardKind = ShardKind.DATA) -> Seal:
    return Seal("ns", index, step, kind, len(body), digest_of([memoryview(body)]), "", 1.0, save, "n", True)


def test_a_step_is_durable_from_its_last_seal_on_whoever_puts_it(tmp_path: Path):
    order = [(2, ShardKind.METADATA), (0, ShardKind.DATA), (1, ShardKind.DATA)]
    cold = Cold(tmp_path.as_uri())
    for number, (index, kind) in enumerate(order):
        manifest = cold.write(seal_of(index, b"body", kind=kind), memoryview(b"body"))
        assert (manifest is not None) == (number == 2)
        assert cold.steps("ns") == ((1,) if number == 2 else ())


def test_ranks_that_end_at_the_same_moment_commit_the_step_once(tmp_path: Path):
    clients = [Cold(tmp_path.as_uri()) for _ in range(5)]
    gate = threading.Barrier(5)
    committed: list[object] = []

    def write(index: int, save: str) -> None:
        kind = ShardKind.METADATA if index == 4 else ShardKind.DATA
        gate.wait()
        committed.append(clients[index].write(seal_of(index, b"body", save=save, kind=kind), memoryview(b"body")))

    for step in range(10):
        threads = [threading.Thread(target=write, args=(index, f"save-{step}")) for index in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clients[0].steps("ns") == (1,), step
        clients[0].discard("ns", 0)
    assert sum(one is not None for one in committed) == 10


def test_no_manifest_stands_while_the_bytes_of_its_step_change(tmp_path: Path):
    tiers = only_store(tmp_path)
    saved(tiers, 3, "first")
    assert tiers.find(3) is not None
    write_shard(tiers, Whose(3, 0, "second", True), [Part("blob", None, b"y" * 100)])
    assert tiers.find(3) is None
    assert (tmp_path / "checkpoints" / superseded_key("ns", 3, "first")).exists()
    saved(tiers, 3, "second", filling=b"y")
    found = tiers.find(3)
    assert found is not None
    assert found.save == "second"
    with tiers.read(found) as reader:
        assert reader.blob("blob") == b"y" * 100


def test_shards_of_two_saves_never_make_up_a_step(tmp_path: Path):
    tiers = only_store(tmp_path)
    write_shard(tiers, Whose(4, 0, "a", True), [Part("blob", None, b"1")])
    write_shard(tiers, Whose(4, 1, "b", True), [Part("blob", None, b"2")])
    write_metadata(tiers, Whose(4, 2, "b", True), Contents(2, {}, {"blob": 0}).to_json())
    assert tiers.latest() == ()
    write_shard(tiers, Whose(4, 0, "b", True), [Part("blob", None, b"3")])
    assert [found.save for found in tiers.latest()] == ["b"]


def test_steps_are_told_newest_first_and_discarded_ones_no_more(tmp_path: Path):
    tiers = only_store(tmp_path)
    for step in (1, 20, 3):
        saved(tiers, step, "s")
    assert [found.step for found in tiers.latest(2)] == [20, 3]
    tiers.discard(after=2)
    assert [found.step for found in tiers.latest(9)] == [1]
    assert tiers.find(20) is None


def test_a_torn_seal_in_the_store_counts_as_none(tmp_path: Path):
    tiers = only_store(tmp_path)
    write_shard(tiers, Whose(5, 0, "s", True), [Part("blob", None, b"1")])
    seal = tmp_path / "checkpoints" / "ns" / "rank_0" / "step_5" / "seal.json"
    whole = seal.read_bytes()
    seal.write_bytes(whole[:20])
    write_metadata(tiers, Whose(5, 1, "s", True), Contents(1, {}, {"blob": 0}).to_json())
    assert tiers.latest() == ()


def test_a_damaged_manifest_says_so_instead_of_being_taken_for_nothing(tmp_path: Path):
    tiers = only_store(tmp_path)
    saved(tiers, 6, "s")
    (tmp_path / "checkpoints" / manifest_key("ns", 6)).write_text(json.dumps({"namespace": "ns"}))
    with pytest.raises(Exception, match="the manifest of step 6 of ns in the object store cannot be read"):
        tiers.find(6)


def test_a_damaged_manifest_hides_no_older_step_and_no_later_save_of_its_own(tmp_path: Path):
    tiers = only_store(tmp_path)
    saved(tiers, 5, "s")
    assert [found.step for found in tiers.latest(3)] == [5]
    saved(tiers, 6, "s")
    (tmp_path / "checkpoints" / manifest_key("ns", 6)).write_text("{")
    assert [found.step for found in tiers.latest(3)] == [5]
    tiers.discard(5)
    assert [found.step for found in tiers.latest(3)] == [5]
    saved(tiers, 6, "t")
    assert [(found.step, found.save) for found in tiers.latest(3)] == [(6, "t"), (5, "s")]
    for step in (5, 6):
        (tmp_path / "checkpoints" / manifest_key("ns", step)).write_text("{")
    with pytest.raises(TierAway, match="the manifest of step 5"):
        tiers.latest(3)


def test_a_step_that_is_not_durable_has_no_place_without_a_memory_tier(tmp_path: Path):
    with pytest.raises(SaveRefused, match="EVERSTEP_CHECKPOINT_SOCKET is not set"):
        write_shard(only_store(tmp_path), Whose(1, 0, "s", False), [Part("blob", None, b"1")])


def test_a_tier_that_is_away_is_not_an_empty_one(tmp_path: Path):
    """One that was killed leaves its socket's name behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as crashed:
        crashed.bind(str(tmp_path / "crashed"))
    tiers = Tiers.from_environment({}, EVERSTEP_CHECKPOINT_SOCKET=str(tmp_path / "crashed"), EVERSTEP_NAMESPACE="ns")
    assert tiers.is_memory_there
    with pytest.raises(TierAway, match="must not begin anew on a guess"):
        tiers.latest()


def test_a_tier_that_is_switched_off_keeps_nobody_from_beginning(tmp_path: Path):
    """Every process is told where the tier of its node would be: it may be switched on while the job runs."""
    tiers = Tiers.from_environment({}, EVERSTEP_CHECKPOINT_SOCKET=str(tmp_path / "nobody"), EVERSTEP_NAMESPACE="ns")
    assert not tiers.is_memory_there
    assert tiers.latest() == ()
    with pytest.raises(SaveRefused, match="TieredStorageConfig of its cluster switches it on"):
        write_shard(tiers, Whose(1, 0, "s", False), [Part("blob", None, b"1")])


def test_a_tier_that_answers_nonsense_is_away_and_not_an_error_of_json(tmp_path: Path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def nonsense() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=nonsense)
        thread.start()
        tiers = Tiers.from_environment({}, EVERSTEP_CHECKPOINT_SOCKET=str(path), EVERSTEP_NAMESPACE="ns")
        with pytest.raises(TierAway):
            tiers.status()
        thread.join()


def test_a_namespace_that_is_no_folder_name_is_refused_at_once():
    with pytest.raises(CheckpointMismatch, match=r"EVERSTEP_NAMESPACE is '\.\./other'"):
        Tiers.from_environment({}, EVERSTEP_NAMESPACE="../other")


def test_an_exclusive_lock_keeps_the_segment_that_a_dead_tier_left_to_its_writer(tmp_path: Path):
    with memory_tiers(tmp_path, 1) as nodes:
        tiers = Tiers.from_environment(nodes[0].environment())
        saved(tiers, 1, "s", ranks=1, durable=False)
        shard = tiers.open(index=0, step=2, save="s", nbytes=1000, kind=ShardKind.DATA, is_durable=True)
        shard.body[:] = b"z" * 1000
        nodes[0].kill()
        nodes[0].start()
        others = [tiers.open(index=0, step=3, save="t", nbytes=1000, kind=ShardKind.DATA, is_durable=False) for _ in range(3)]
        for other in others:
            other.body[:] = b"!" * 1000
            other.abandon()
        seal = shard.seal(1000)  # the tier does not know of it any more: straight to the store
        assert seal.digest == digest_of([memoryview(b"z" * 1000)])
        tiers.close()


def test_what_was_reserved_is_mapped_and_used_by_the_saves_that_follow(tmp_path: Path):
    with memory_tiers(tmp_path, 1) as nodes:
        tiers = Tiers.from_environment(nodes[0].environment())
        assert tiers.reserve(0, 1 << 20, 2) == 2
        assert tiers.memory is not None
        mapped = set(tiers.memory.segments)
        assert len(mapped) == 2
        for step in (1, 2):
            write_shard(tiers, Whose(step, 0, "s", False), [Part("blob", None, b"x" * 1000)])
        assert set(tiers.memory.segments) == mapped
        tiers.close()


def test_a_tier_that_is_switched_off_gets_the_memory_back_that_was_mapped_here(tmp_path: Path):
    with memory_tiers(tmp_path, 1) as nodes:
        tiers = Tiers.from_environment(nodes[0].environment())
        assert tiers.memory is not None
        write_shard(tiers, Whose(1, 0, "s", False), [Part("blob", None, b"x" * 1000)])
        assert tiers.memory.segments
        nodes.tell(allocation_percent=None)
        until(lambda: not tiers.memory.segments, "the segment is unmapped")
        with pytest.raises(SaveRefused, match="has no memory tier now"):
            write_shard(tiers, Whose(2, 0, "s", False), [Part("blob", None, b"x" * 1000)])
        nodes.tell(allocation_percent=25)
        until(nodes[0]._serves, "the tier is on again")
        write_shard(tiers, Whose(3, 0, "s", False), [Part("blob", None, b"x" * 1000)])
        tiers.close()
