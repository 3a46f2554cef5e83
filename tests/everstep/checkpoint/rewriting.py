"""A step written again under another number, with other values: whole, sealed, and by its digests beyond reproach."""

from __future__ import annotations

import io
from typing import Any

import torch

from everstep.checkpoint.policy import Wanted
from everstep.checkpoint.saving import Order, Save, ShardWork
from everstep.checkpoint.snapshot import REST, capture, divide, entries_of
from everstep.checkpoint.tiers import Tiers
from everstep.checkpoint.torch_parts import dtype_of


class Rewritten:
    """What a step holds, as what ``capture`` takes."""

    def __init__(self, tensors: dict[str, torch.Tensor], rest: dict[str, Any]) -> None:
        self.tensors = tensors
        self.rest = rest

    def items(self) -> list[tuple[str, torch.Tensor]]:
        return list(self.tensors.items())

    def paths(self) -> dict[str, tuple[str | int, ...]]:
        return {}

    def fleeting(self) -> set[int]:
        return set()

    def pack_rest(self, cursor: dict[str, Any]) -> bytes:
        blob = io.BytesIO()
        torch.save({**self.rest, "cursor": {**self.rest["cursor"], **cursor}}, blob)
        return blob.getvalue()

    def unpack_rest(self, blob: bytes) -> tuple[list[torch.Tensor], dict[str, Any]]:
        raise NotImplementedError


def poison(tiers: Tiers, step: int, later: int, *, samples_a_step: int, world_size: int = 2) -> None:
    """Step ``later`` is ``step`` with NaN for its model's weights."""
    found = tiers.find(step)
    assert found is not None
    with tiers.read(found) as reader:
        contents = reader.metadata()
        tensors = {name: torch.empty(one.size, dtype=dtype_of(one.dtype)) for name, one in contents.tensors.items()}
        reader.fill_tensors(tensors)
        rest = torch.load(io.BytesIO(reader.blob(REST)), weights_only=True)
    for name, tensor in tensors.items():
        if name.startswith("model.") and tensor.is_floating_point():
            tensor.fill_(float("nan"))
    write(tiers, Rewritten(tensors, rest), later, {"step": later, "consumed": later * samples_a_step}, world_size)


def write(tiers: Tiers, state: Rewritten, step: int, cursor: dict[str, Any], world_size: int) -> None:
    division = divide(entries_of(state.items()), world_size)
    contents = division.contents({REST: 0}, {}).to_json()
    for rank in range(world_size):
        captured = capture(state, division, rank, {REST: state.pack_rest(cursor)} if rank == 0 else {})
        wanted = Wanted(memory=tiers.has_memory, durable=tiers.has_store)
        order = Order(step, "poisoned", rank, world_size, wanted, captured, None if rank else contents)
        save = Save(ShardWork(order, tiers), step, wanted, tiers, policy=lambda: None)
        assert save.wait(20)
        assert save.outcome.error is None
