"""Hugging Face Accelerate in the resilient loop: it sees to the device, to mixed precision and to clipping; Everstep to ranks, gradients and recovery."""

from __future__ import annotations

import os
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import mse_loss

import everstep

run = everstep.init()

# With these Accelerate would make process groups of its own, which no recovery renews.
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)


STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = accelerator.prepare_model(model)
state = everstep.State(model=model, optimizer=optimizer)
generator = torch.Generator().manual_seed(1)
data = list(zip(torch.randn(512, 16, generator=generator), torch.randn(512, 4, generator=generator), strict=True))


@everstep.resilient(state, everstep.Checkpointer())
def train(run: everstep.Run) -> None:
    for step, (x, y) in run.steps(data, global_batch=32, until=STEPS):
        loss = mse_loss(model(x.to(accelerator.device)), y.to(accelerator.device))
        accelerator.backward(loss / run.accumulation)
        with run.update(step, loss=loss):  # on entering, the gradients have been averaged over the ranks
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


train()
print(f"trained {run.step} steps as rank {run.rank} of {run.world_size}", flush=True)
