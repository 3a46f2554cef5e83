"""A small training script for what the kill test does not cover. Usage: small.py KIND NOTES UNTIL FAULTS."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import everstep
from everstep import testing

KIND, NOTES, UNTIL = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
PACE_S = 0.02


def use_collectives(run: everstep.Run) -> None:
    """What scripts call by themselves, on the default group and on one of their own."""
    rank, world = run.rank, run.world_size
    dist.barrier()
    everybody: list[object] = [None] * world
    dist.all_gather_object(everybody, {"rank": rank})
    assert everybody == [{"rank": other} for other in range(world)]
    words: list[object] = ["from rank 0" if rank == 0 else None]
    dist.broadcast_object_list(words, src=0)
    assert words == ["from rank 0"]
    gathered = torch.empty(world)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))
    assert gathered.tolist() == [float(other) for other in range(world)]
    scattered = torch.empty(1)
    dist.reduce_scatter_tensor(scattered, torch.arange(float(world)))
    assert scattered.item() == rank * world
    token = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(token, 1)
    elif rank == 1:
        dist.recv(token, 0)
        assert token.item() == 0.0
    everywhere = run.group("everywhere")
    assert everywhere is run.group("everywhere")
    assert (dist.get_rank(everywhere), everywhere.size()) == (rank, world)
    counted = torch.ones(1)
    dist.all_reduce(counted, group=everywhere)
    assert counted.item() == world
    first = run.group("first", [0, 1])
    if rank < 2:
        dist.all_reduce(counted, group=first)
        assert counted.item() == 2 * world
    assert first.size() == (2 if rank < 2 else 0)
    pair = dist.new_group([0, 1])
    if rank < 2:
        both = torch.ones(1)
        dist.all_reduce(both, group=pair)
        assert both.item() == 2.0


def main() -> None:
    testing.arm(sys.argv[4])
    everstep.init()
    torch.manual_seed(os.getpid() if KIND == "unseeded" else 1)
    model: torch.nn.Module = torch.nn.Linear(3, 1)
    if KIND == "swallows":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = [(torch.full((3,), number / 50), torch.ones(1)) for number in range(50)]

    @everstep.resilient(everstep.State(model=model, optimizer=optimizer))
    def train(run: everstep.Run) -> str:
        entered = 0
        if KIND == "collectives" and not run.rehearsing:
            use_collectives(run)
        for step, (inputs, targets) in run.steps(samples, global_batch=10, until=UNTIL):
            if KIND == "fails" and not run.rehearsing and step == 4:
                message = "the user's own mistake"
                raise ValueError(message)
            if KIND == "forgets" and not run.rehearsing and step == 4:
                continue
            loss = (model(inputs) - targets).square().mean() / run.accumulation
            with contextlib.suppress(RuntimeError if KIND == "swallows" else ()):
                loss.backward()
            with run.update(step, loss=loss):
                optimizer.step()
                optimizer.zero_grad()
            if not run.rehearsing:
                entered += 1
                time.sleep(PACE_S * (5 if KIND == "slow" else 1))
        return f"trained {entered} steps, left as rank {run.rank} of {run.world_size}"

    said = train()
    (NOTES / f"left-{os.getpid()}").write_text(said)


if __name__ == "__main__":
    main()
