"""One process that takes seats. Prints a line for each thing that is as it should be, and stops at the first that is not."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from everstep.checkpoint.snapshot import Plan, divide, entries_of
from everstep.resilience import State, settings
from everstep.resilience.membership import Membership
from everstep.resilience.run import Run
from everstep.resilience.sharding import Seat

LENGTHS = (7, 5, 1)
"""Rows that no number of shards divides, and fewer of them than shards."""


def net() -> torch.nn.Module:
    torch.manual_seed(3)
    inner = [torch.nn.Linear(rows, after) for rows, after in zip((4, *LENGTHS), LENGTHS, strict=False)]
    return torch.nn.Sequential(*inner)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = model(torch.randn(6, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def rows_are_right(state: State, whole: dict[str, torch.Tensor], seat: Seat) -> bool:
    for key, tensor in state.whole_tensors():
        if isinstance(tensor, DTensor):
            first, end = seat.rows(tensor.shape[0])
            assert torch.equal(tensor.to_local(), whole[key][first:end]), (key, seat)
            assert tuple(tensor.shape) == tuple(whole[key].shape)
    return True


def main() -> None:
    seen = settings.read({})
    membership = Membership(seen, None)
    run = Run(seen, membership)
    plain = net()
    expected = train(plain, torch.optim.AdamW(plain.parameters(), lr=0.1), 4)
    model, mesh = net(), run.mesh()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = State(model=model, optimizer=optimizer)
    run.attach(state)
    assert train(model, optimizer, 2) == expected[:2]
    print("sharded alone as unwrapped")

    sharding, objects = membership.sharding, [*model.parameters()]
    digest = state.digest()
    whole = {key: tensor.to_local().clone() if isinstance(tensor, DTensor) else tensor for key, tensor in state.whole_tensors()}
    entries = state.entries()
    before = sharding.current(model, optimizer)
    for shards in (1, 2, 3, 4):
        for index in range(shards):
            seat = Seat(shards, index)
            sharding.adopt(model, optimizer, sharding.prepare(model, optimizer, seat))
            state.reseated()
            assert rows_are_right(state, whole, seat)
            assert state.entries() == entries
            division = divide(entries_of(state.items()), shards)
            captured = Plan(state.items(), division, index, set()).capture({})
            assert sum(tensor.nbytes for tensor in captured.tensors) == sum(part.nbytes for part in division.parts[index])
            sharding.adopt(model, optimizer, before)
            state.reseated()
            assert state.digest() == digest
    print("every seat has its rows, and the seat of before comes back")
    assert all(one is other for one, other in zip(objects, model.parameters(), strict=True))
    print("parameters are the same objects")

    torch.manual_seed(9)
    model(torch.randn(6, 4)).square().mean()  # a step that is left after its forward
    state.abandon_step()
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    torch.manual_seed(2)
    loss = model(torch.randn(6, 4)).square().mean()
    loss.backward()
    optimizer.step()
    assert loss.item() == expected[2]
    optimizer.zero_grad()
    torch.manual_seed(3)
    assert model(torch.randn(6, 4)).square().mean().item() == expected[3]
    print("a step that was left leaves no trace")


if __name__ == "__main__":
    main()
