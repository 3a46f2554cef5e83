"""The training script of the kill tests. Usage: train.py MODE NOTES UNTIL FAULTS [EVERY [DURABLE_EVERY]].

MODE is ddp, manual, fsdp or hsdp (two shards), NOTES a folder, EVERY and DURABLE_EVERY are steps between saves; 0: chosen by measurement.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep import testing

MODE, NOTES, UNTIL = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
EVERY, DURABLE_EVERY = (int(given) or None for given in [*sys.argv[5:7], *("10", "0")[len(sys.argv[5:7]) :]])
PACE_S = 0.02 if sys.argv[5:] else 0.0
"""Where intervals of saves are said, a step takes long enough for a save to end within some of them."""
WIDTH = 48


class Net(torch.nn.Module):
    """Residual blocks with dropout, so that wrong randomness would show."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = torch.nn.Linear(16, WIDTH)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(3)
        )
        self.outward = torch.nn.Linear(WIDTH, 4)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        hidden = self.inward(samples)
        for number, block in enumerate(self.blocks):
            hidden = hidden + block(hidden)
            if number == 1 and hidden.requires_grad:
                hidden.register_hook(lambda _: testing.point("backward"))
        return self.outward(hidden)


class Samples:
    """A dataset that is a function of the index."""

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), torch.randn(4, generator=generator)


def note(name: str, **members: object) -> None:
    with (NOTES / f"{name}-{os.getpid()}.jsonl").open("a") as stream:
        stream.write(json.dumps(members) + "\n")


def wrapped(net: Net, run: everstep.Run) -> torch.nn.Module:
    if MODE == "ddp":
        return DistributedDataParallel(net, bucket_cap_mb=0.01)
    if MODE in {"fsdp", "hsdp"}:
        mesh = run.mesh(shard=2 if MODE == "hsdp" else None)
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    return net


def inside(tensor: torch.Tensor) -> torch.Tensor:
    """Of a sharded tensor what is in this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    testing.arm(sys.argv[4])
    run = everstep.init()
    torch.manual_seed(7)
    model = wrapped(Net(), run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    state = everstep.State(model=model, optimizer=optimizer, scheduler=scheduler)

    @everstep.resilient(state, everstep.Checkpointer(EVERY, DURABLE_EVERY))
    def train(run: everstep.Run) -> None:
        for step, (samples, targets) in run.steps(Samples(), global_batch=24, until=UNTIL):
            loss = (model(samples) - targets).square().mean() / run.accumulation
            time.sleep(PACE_S)
            loss.backward()
            with run.update(step, loss=loss) as update:
                parameters = list(model.parameters())
                if not run.rehearsing:
                    testing.point("mid-update")
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if run.notice is not None:
                note("notices", step=step, why=run.notice.why)
            if not run.rehearsing:
                note("losses", step=step, rank=run.rank, loss=update.loss, generation=run.generation)
                note(
                    "identities",
                    objects=[id(model), id(optimizer), *map(id, parameters)],
                    storage=[inside(parameter).data_ptr() for parameter in parameters],
                    moments=[inside(optimizer.state[parameter]["exp_avg"]).data_ptr() for parameter in parameters],
                )

    train()


if __name__ == "__main__":
    main()
