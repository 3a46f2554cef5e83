"""What the library does when copies are lost or bad: the next copy, then the next tier, then the next older step, each said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xxhash

from everstep.shards import STAMP_BYTES
from tests.checkpoint.tiers import Node, Tiers, memory_tiers, planned, until
from tests.everstep.checkpoint import programs
from tests.everstep.checkpoint.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def workers():
    with ranks(2) as made:
        yield made


def environments(*nodes: Node) -> list[dict[str, str]]:
    return [node.environment() for node in nodes]


def segment(node: Node, step: int, index: int) -> Path:
    return next(path for path in (node.folder / "ns" / "ns" / str(step)).glob(f"{index}-*") if path.suffix != ".json")


def is_good(node: Node, step: int, index: int) -> bool:
    """Whether a shard is there, and its bytes have the digest of its seal."""
    try:
        path = segment(node, step, index)
        seal = json.loads(path.with_name(path.name + ".json").read_text())
        body = path.read_bytes()[STAMP_BYTES : STAMP_BYTES + seal["size"]]
    except (OSError, StopIteration):
        return False
    return len(body) == seal["size"] and xxhash.xxh3_128_hexdigest(body) == seal["digest"]


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def replicated(workers: Ranks, tiers: Tiers, step: int) -> list[str]:
    told = workers.run(2, programs.save, environments(tiers[0], tiers[1]), "dcp", step)
    for waited in workers.run(2, programs.wait, environments(tiers[0], tiers[1]), step, 2, False):
        assert waited["replicas"] >= 2
    return told


def test_after_the_loss_of_a_node_all_is_read_from_peers_and_nothing_from_the_store(workers: Ranks, tmp_path: Path):
    with memory_tiers(tmp_path, 3) as tiers:
        told = replicated(workers, tiers, 7)
        tiers[0].lose()
        tiers.tell(present=[tiers[1], tiers[2]])
        found = workers.run(2, programs.load, environments(tiers[2], tiers[1]))
        assert {(one["step"], one["digest"]) for one in found} == {(7, digest) for digest in told}
        assert [one["counts"]["store"] for one in found] == [0, 0]
        assert [one["reads"] for one in found] == [0, 0]
        assert sum(one["counts"]["peer"] + one["counts"]["memory"] for one in found) > 0


def test_when_all_holders_are_lost_the_newest_durable_step_is_loaded_and_said(workers: Ranks, tmp_path: Path):
    with memory_tiers(tmp_path, 2) as tiers:
        nodes = environments(*tiers)
        durable = workers.run(2, programs.save, nodes, "dcp", 1, True)
        assert all(waited["is_durable"] for waited in workers.run(2, programs.wait, nodes, 1, 1, True))
        workers.run(2, programs.save, nodes, "dcp", 2)
        for node in tiers:
            node.lose()
        for node in tiers:
            node.start()
        found = workers.run(2, programs.load, nodes)
        assert {(one["step"], one["digest"]) for one in found} == {(1, digest) for digest in durable}
        assert all("step 1 is loaded from the object store" in " ".join(one["told"]) for one in found)


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_segment_is_noticed_and_the_peers_copy_is_used(workers: Ranks, tmp_path: Path, damage: str):
    with memory_tiers(tmp_path, 2, environment={"EVERSTEP_MEMORY_TIER_SCRUB_S": "3600"}) as tiers:
        told = replicated(workers, tiers, 3)
        bad = segment(tiers[0], 3, 0)
        if damage == "flipped":
            flip(bad, STAMP_BYTES + 10)
        else:
            with bad.open("r+b") as file:
                file.truncate(STAMP_BYTES + 100)
        found = workers.run(2, programs.load, environments(tiers[0], tiers[0]))
        assert {(one["step"], one["digest"]) for one in found} == {(3, digest) for digest in told}
        assert all(one["counts"]["store"] == 0 for one in found)
        is_said = any("a copy of shard 0 of step 3 is passed over" in words for one in found for words in one["told"])
        assert is_said or damage == "cut", "one that is cut off its tier may have found first"
        until(lambda: is_good(tiers[0], 3, 0), "its tier was told, and has fetched it anew from the peer")


def test_a_damaged_copy_at_a_peer_is_noticed_whichever_it_is(workers: Ranks, tmp_path: Path):
    with memory_tiers(tmp_path, 3, environment={"EVERSTEP_MEMORY_TIER_SCRUB_S": "3600"}) as tiers:
        said: list[str] = []
        for step, damaged in ((1, tiers[0]), (2, tiers[1])):
            tiers.tell(present=[tiers[0], tiers[1]])
            told = replicated(workers, tiers, step)
            flip(segment(damaged, step, 0), STAMP_BYTES + 10)
            tiers.tell()
            found = workers.run(2, programs.load, environments(tiers[2], tiers[2]))
            assert {(one["step"], one["digest"]) for one in found} == {(step, digest) for digest in told}
            assert all(one["counts"]["peer"] > 0 and one["counts"]["store"] == 0 for one in found)
            said += [words for one in found for words in one["told"]]
        assert any("a copy of shard 0 of step" in words for words in said)


def test_a_step_whose_only_copy_is_damaged_gives_way_to_the_one_before_on_all_ranks(workers: Ranks, tmp_path: Path):
    store = [{"EVERSTEP_DURABLE_URL": (tmp_path / "objects" / "checkpoints").as_uri(), "EVERSTEP_NAMESPACE": "ns"}]
    older = workers.run(2, programs.save, store, "dcp", 1, True)
    workers.run(2, programs.save, store, "dcp", 2, True)
    flip(tmp_path / "objects" / "checkpoints" / "ns" / "rank_1" / "step_2" / "checkpoint.pt", 5)
    for how in ("dcp", "direct"):
        found = workers.run(2, programs.load, store, how)
        assert {(one["step"], one["digest"]) for one in found} == {(1, digest) for digest in older}
    metadata = tmp_path / "objects" / "checkpoints" / "ns" / "rank_0" / "step_2" / "metadata.metadata"
    flip(metadata, 9)
    assert {one["step"] for one in workers.run(2, programs.load, store)} == {1}


def test_a_tier_that_dies_in_the_middle_of_a_save_costs_that_save_alone(workers: Ranks, tmp_path: Path):
    with memory_tiers(tmp_path, 1) as tiers:
        here = environments(tiers[0])
        told = workers.run(1, programs.save, here, "dcp", 1)
        words = workers.run(1, programs.save_into_a_dying_tier, here, 2, tiers[0].pid)[0]
        assert "shard 0 of step 2 is not saved" in words
        tiers[0].kill()  # once more: then the test's agent knows as well
        tiers[0].start()
        assert workers.run(1, programs.load, here)[0]["digest"] == told[0]
        after = workers.run(1, programs.save, here, "dcp", 3)
        assert workers.run(1, programs.load, here)[0]["digest"] == after[0]


def test_a_durable_save_into_a_full_memory_goes_straight_to_the_store(workers: Ranks, tmp_path: Path):
    with memory_tiers(tmp_path, 1, allocation_percent=0, namespaces=[planned()]) as tiers:
        told = workers.run(1, programs.save, environments(tiers[0]), "dcp", 5, True)
        found = workers.run(1, programs.load, environments(tiers[0]))[0]
        assert (found["step"], found["digest"]) == (5, told[0])
        assert found["counts"]["store"] > 0
