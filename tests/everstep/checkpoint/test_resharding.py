"""Worlds of 2, then 4, then 1 ranks, each going on from what the one before has saved: the full state stays the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.tiers import memory_tiers
from tests.everstep.checkpoint import programs
from tests.everstep.checkpoint.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def workers():
    with ranks(4) as made:
        yield made


def pass_on(workers: Ranks, environments: list[dict[str, str]], kind: str, source: str) -> None:
    durable = source == "store"
    told = workers.run(2, programs.save_model, environments, kind, 1, durable)
    for step, world in ((2, 4), (3, 1)):
        passed = workers.run(world, programs.pass_on_model, environments, kind, step, durable)
        assert {digest for digest, _ in passed} == set(told), (kind, world)
        assert all(counts[source] > 0 for _, counts in passed)
        assert all(nbytes == 0 for _, counts in passed for name, nbytes in counts.items() if name == "store" and not durable)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "hsdp"])
def test_a_world_of_another_size_goes_on_from_memory(workers: Ranks, tmp_path: Path, kind: str):
    with memory_tiers(tmp_path, 2) as tiers:
        pass_on(workers, [node.environment() for node in tiers], kind, "memory")


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "hsdp"])
def test_a_world_of_another_size_goes_on_from_the_store(workers: Ranks, tmp_path: Path, kind: str):
    store = {"EVERSTEP_DURABLE_URL": (tmp_path / "objects" / "checkpoints").as_uri(), "EVERSTEP_NAMESPACE": "ns"}
    pass_on(workers, [store], kind, "store")
