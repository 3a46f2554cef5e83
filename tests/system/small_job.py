"""A training script that is over in seconds: two layers on made-up data, DDP, deterministic."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import everstep

steps = int(sys.argv[1])
pause_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.03

run = everstep.init()
torch.manual_seed(3)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
state = everstep.State(model=model, optimizer=optimizer)
generator = torch.Generator().manual_seed(5)
data = list(zip(torch.randn(512, 16, generator=generator), torch.randn(512, 4, generator=generator), strict=True))


@everstep.resilient(state, everstep.Checkpointer())
def train(run):
    for step, (x, y) in run.steps(data, global_batch=16, until=steps, seed=1):
        loss = functional.mse_loss(model(x), y)
        (loss / run.accumulation).backward()
        if not run.rehearsing:
            time.sleep(pause_s)  # work that takes its time, as real work does
        with run.update(step, loss=loss):
            optimizer.step()
            optimizer.zero_grad()


train()
