"""A language model's loss in small: samples of unequal length, and the mean is that over all tokens. Usage: tokens.py MODE NOTES UNTIL [WORKERS].

MODE is ddp, manual, fsdp or hsdp (two shards). Importing it does nothing: the test trains the same model by itself, without any of the runtime.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import everstep

GLOBAL_BATCH = 14
SEED = 3
WIDTH = 6
SIZE = 90
SCALE = {2: {"micro_batch": 7}, 4: {"micro_batch": 2}}
PACE_S = 0.05
Sample = tuple[torch.Tensor, torch.Tensor]


def sample(index: int) -> Sample:
    """Between 1 and 17 tokens."""
    generator = torch.Generator().manual_seed(index)
    length = 1 + index * 7 % 17
    inputs = torch.randn(length, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(length, generator=generator, dtype=torch.float64)


class Samples:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, Sample]:
        return index, sample(index)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).squeeze(-1)


def parts() -> tuple[Net, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    torch.manual_seed(5)
    net = Net()
    return net, *optimizer_of(net)


def optimizer_of(net: torch.nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def loss_sum(net: torch.nn.Module, samples: list[Sample]) -> tuple[torch.Tensor, int]:
    """The sum over all tokens, and how many these are."""
    inputs, targets = (torch.cat([one[part] for one in samples]) for part in range(2))
    return (net(inputs) - targets).square().sum(), len(targets)


def wrapped(net: Net, mode: str, run: everstep.Run) -> torch.nn.Module:
    if mode == "ddp":
        return DistributedDataParallel(net)
    if mode in {"fsdp", "hsdp"}:
        mesh = run.mesh(shard=2 if mode == "hsdp" else None)
        fully_shard(net.layers[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    return net


def inside(tensor: torch.Tensor) -> torch.Tensor:
    """Of a sharded tensor what is in this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def pair_of(rank: int, world_size: int) -> range:
    """Ranks 0 and 1, 2 and 3; the last of an odd number is alone."""
    return range(rank // 2 * 2, min(world_size, rank // 2 * 2 + 2))


def main(mode: str, notes: Path, until: int, workers: int = 0) -> None:
    run = everstep.init()
    torch.manual_seed(5)
    net = Net()
    model = wrapped(net, mode, run)
    optimizer, scheduler = optimizer_of(net)
    pair = run.group("pair", pair_of)
    state = everstep.State(model=model, optimizer=optimizer, scheduler=scheduler)

    @everstep.resilient(state, scale=SCALE)
    def train(run: everstep.Run) -> None:
        for step, batch in run.steps(Samples(), global_batch=GLOBAL_BATCH, until=until, collate=list, workers=workers):
            total, tokens = loss_sum(model, [one for _, one in batch])
            loss = total / run.weight(tokens)
            loss.backward()
            ranks = torch.tensor([run.rank])
            dist.all_reduce(ranks, group=pair)
            rate = optimizer.param_groups[0]["lr"]
            with run.update(step, loss=loss) as update:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not run.rehearsing:
                hashed = [(index, hashlib.sha256(inputs.numpy().tobytes()).hexdigest()[:16]) for index, (inputs, _) in batch]
                told = {
                    "step": step,
                    "world": run.world_size,
                    "rank": run.rank,
                    "pair": [pair.size(), int(ranks)],
                    "samples": hashed,
                    "rate": rate,
                    "loss": update.loss,
                    "scale": dict(run.scale),
                    "origin": run.batch_origin,
                    "kept": [id(model), id(optimizer), *(inside(one).data_ptr() for one in net.parameters())],
                }
                with (notes / f"{os.getpid()}.jsonl").open("a") as stream:
                    stream.write(json.dumps(told) + "\n")
                time.sleep(PACE_S)

    train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
