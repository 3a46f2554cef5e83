from __future__ import annotations

from pathlib import Path

import pytest
import torch

from everstep.checkpoint import cold, copies
from everstep.checkpoint.contents import Chunk, Contents, TensorContent
from everstep.checkpoint.placing import Part, Whose, write_metadata, write_shard
from everstep.checkpoint.tiers import Tiers
from everstep.errors import CheckpointUnreadable
from everstep.shards import shard_key

SIZES = (0, 3, 5000, 1, 70_000)


@pytest.fixture(params=[1000, 4096, 20_000, 1 << 20])
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "_CACHED", request.param)
    monkeypatch.setattr(copies, "_HASHED_BEHIND", request.param)


@pytest.fixture(params=[True, False], ids=["hashed as it is copied", "hashed while more comes"])
def is_local(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold.Cold, "is_local", request.param)


@pytest.mark.usefixtures("small_pieces", "is_local")
def test_a_shard_that_is_read_in_pieces_is_hashed_in_their_order(tmp_path: Path) -> None:
    tiers, tensors = saved(tmp_path)
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with tiers.read(tiers.latest()[0]) as reader:
        reader.fill_tensors(into)
    assert all(torch.equal(into[name], tensor) for name, tensor in tensors.items())
    tiers.close()


@pytest.mark.usefixtures("small_pieces", "is_local")
def test_a_byte_that_is_changed_in_any_piece_is_noticed(tmp_path: Path) -> None:
    tiers, tensors = saved(tmp_path)
    path = tmp_path / "checkpoints" / shard_key("ns", 0, 1, 1)
    whole = path.read_bytes()
    for at in (0, 999, 1000, 20_000, len(whole) // 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with tiers.read(tiers.latest()[0]) as reader, pytest.raises(CheckpointUnreadable, match="checksum"):
            reader.fill_tensors({name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    tiers.close()


def saved(folder: Path) -> tuple[Tiers, dict[str, torch.Tensor]]:
    tiers = Tiers.from_environment({}, EVERSTEP_DURABLE_URL=f"file://{folder}/checkpoints", EVERSTEP_NAMESPACE="ns")
    tensors = {f"w{number}": torch.randn(size) for number, size in enumerate(SIZES)}
    write_shard(tiers, Whose(1, 0, "save", True), [Part(name, (0,), tensor) for name, tensor in tensors.items()])
    chunks = {name: TensorContent("float32", (len(one),), (Chunk((0,), (len(one),), 0),)) for name, one in tensors.items()}
    write_metadata(tiers, Whose(1, 1, "save", True), Contents(1, chunks, {}).to_json())
    return tiers, tensors
