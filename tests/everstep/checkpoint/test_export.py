"""Durable steps as files that other programs read with their own code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from everstep.checkpoint import export
from tests.everstep.checkpoint import programs
from tests.everstep.checkpoint.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def workers():
    with ranks(2) as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> str:
    return (tmp_path / "objects" / "checkpoints").as_uri()


def store(source: str) -> list[dict[str, str]]:
    return [{"EVERSTEP_DURABLE_URL": source, "EVERSTEP_NAMESPACE": "ns"}]


def run(source: str, step: int, form: str, to: str) -> tuple[int, dict]:
    said: list[str] = []
    asked = ["--source", source, "--namespace", "ns", "--step", str(step), "--format", form, "--to", to]
    code = export.main(asked, said.append)
    return code, json.loads(said[-1]) if said else {}


def test_plain_dcp_loads_what_was_exported_for_it_in_another_world(workers: Ranks, source: str, tmp_path: Path):
    told = workers.run(2, programs.save, store(source), "dcp", 4, True)
    code, words = run(source, 4, "dcp", str(tmp_path / "out"))
    assert (code, words["files"]) == (0, 3)
    assert workers.run(1, programs.load_files, store(source), str(tmp_path / "out")) == told[:1]
    assert workers.run(2, programs.load_files, store(source), str(tmp_path / "out")) == told


def test_safetensors_hold_the_model_alone_under_its_own_names(workers: Ranks, source: str, tmp_path: Path):
    workers.run(2, programs.save_model, store(source), "ddp", 5, True)
    expected = workers.run(2, programs.weights_of, store(source), 5)[0]
    code, words = run(source, 5, "safetensors", (tmp_path / "out").as_uri())
    assert code == 0
    assert words["left_out"] > 0  # the optimizer
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert {name: file.get_tensor(name).tolist() for name in file.keys()} == {  # noqa: SIM118  (it is no dictionary)
            name: tensor.tolist() for name, tensor in expected.items()
        }


def test_every_type_that_safetensors_know_is_written_bit_for_bit(workers: Ranks, source: str, tmp_path: Path):
    workers.run(1, programs.save, store(source), "direct", 6, True)
    assert run(source, 6, "safetensors", str(tmp_path / "out"))[0] == 0
    draw = torch.Generator().manual_seed(6)
    torch.randn(6, 5, generator=draw)  # what ``assorted`` draws before
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        for dtype in programs.DTYPES:
            numbers = torch.randn(7, 3, generator=draw)
            written = file.get_tensor(f"types.{dtype}")
            assert written.dtype == dtype
            assert torch.equal(written.view(torch.uint8), programs._of_type(numbers, dtype).view(torch.uint8))


def test_a_damaged_step_is_not_exported(workers: Ranks, source: str, tmp_path: Path, capsys):
    workers.run(1, programs.save, store(source), "direct", 7, True)
    shard = tmp_path / "objects" / "checkpoints" / "ns" / "rank_0" / "step_7" / "checkpoint.pt"
    body = bytearray(shard.read_bytes())
    body[100] ^= 1
    shard.write_bytes(body)
    code, _ = run(source, 7, "dcp", str(tmp_path / "out"))
    assert code == 1
    assert "checksum" in capsys.readouterr().err
    assert not (tmp_path / "out" / ".metadata").exists()


def test_the_program_says_what_is_missing_and_ends_with_an_error(source: str, tmp_path: Path):
    asked = f"--source {source} --namespace ns --step 9 --format dcp --to {tmp_path}/out"
    ended = subprocess.run(
        [sys.executable, "-m", "everstep.checkpoint.export", *asked.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert ended.returncode == 1
    assert "the object store has no complete step 9 of namespace ns" in ended.stderr
