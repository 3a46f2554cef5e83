"""An ordinary torchrun script. Nothing in it is Everstep's: it saves its checkpoint by itself and goes on from it when it is started again.

torchrun --nproc-per-node 2 examples/torchrun_ddp.py checkpoints
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, BATCH = 60, 10, 32


@record
def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train()  # nothing of DDP may outlive it: the end of a gloo group that DDP holds waits for ever, if a thread of it needs Python's lock
    dist.destroy_process_group()


def train() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saved = Path(sys.argv[1]) / "checkpoint.pt"
    first = load(saved, model, optimizer, device)
    for step in range(first, STEPS):
        generator = torch.Generator().manual_seed(step)  # the whole batch of a step, of which each rank takes its part
        x, y = torch.randn(BATCH, 16, generator=generator), torch.randn(BATCH, 4, generator=generator)
        loss = mse_loss(model(x[rank::world].to(device)), y[rank::world].to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step + 1) % EVERY == 0:
            save(saved, model, optimizer, step + 1)
            print(f"step {step + 1} of {STEPS}, {world} ranks, loss {loss.item():.4f}", flush=True)


def load(saved: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    if not saved.exists():
        return 0
    held = torch.load(saved, map_location=device)
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    return int(held["step"])


def save(saved: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Under another name first: a process that is killed here leaves the checkpoint before."""
    draft = saved.with_suffix(".draft")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
    draft.replace(saved)


if __name__ == "__main__":
    main()
