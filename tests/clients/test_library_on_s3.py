"""The library's own reading and writing of the object store, on servers of S3 that others wrote."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import everstep.checkpoint
from everstep.checkpoint import export
from everstep.checkpoint.cold import Cold
from everstep.checkpoint.tiers import Tiers
from everstep.shards import Seal, ShardKind
from tests.clients import object_stores

SERVERS = {"moto": object_stores.moto, "seaweedfs": object_stores.seaweedfs}


@pytest.fixture(
    scope="module",
    params=[pytest.param("moto", marks=pytest.mark.clients), pytest.param("seaweedfs", marks=pytest.mark.store)],
)
def server(request, tmp_path_factory):
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def source(server, monkeypatch, request) -> str:
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return f"{server.url}/{request.node.originalname}/checkpoints"


def test_a_state_of_many_ranges_comes_back_and_is_exported_from_s3(source: str, tmp_path: Path):
    tiers = Tiers.from_environment({}, EVERSTEP_DURABLE_URL=source, EVERSTEP_NAMESPACE="ns")
    state = {"large": torch.randn(10 << 20), "small": torch.arange(7), "step": 3}
    for step in (1, 2):
        everstep.checkpoint.save(state, step, durable=True, tiers=tiers)
    assert [found.step for found in tiers.latest(5)] == [2, 1]
    found = {"large": torch.zeros(10 << 20), "small": torch.zeros(7, dtype=torch.int64), "step": 0}
    assert everstep.checkpoint.load(found, tiers=tiers) == 2
    assert torch.equal(found["large"], state["large"])
    assert torch.equal(found["small"], state["small"])
    assert found["step"] == 3
    tiers.discard(after=1)
    assert [found.step for found in tiers.latest(5)] == [1]
    export.export(source, "ns", 1, "safetensors", str(tmp_path))
    assert (tmp_path / "model.safetensors").stat().st_size > 40 << 20


def test_a_step_whose_last_seals_come_at_once_is_committed_on_s3(source: str):
    clients = [Cold(source) for _ in range(4)]
    gate = threading.Barrier(4)

    def write(index: int) -> None:
        kind = ShardKind.METADATA if index == 3 else ShardKind.DATA
        gate.wait()
        clients[index].write(Seal("ns", index, 9, kind, 4, "d", "", 1.0, "s", "n", True), memoryview(b"body"))

    threads = [threading.Thread(target=write, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clients[0].steps("ns") == (9,)
