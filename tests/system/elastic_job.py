"""Like ``small_job``; besides, each rank writes down which samples it has trained on in each step that it has committed."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import everstep

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
record = Path(os.environ["RECORDS"]) / f"{os.getpid()}.txt"

run = everstep.init()
torch.manual_seed(3)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
state = everstep.State(model=model, optimizer=optimizer)
generator = torch.Generator().manual_seed(5)
inputs, targets = torch.randn(512, 16, generator=generator), torch.randn(512, 4, generator=generator)
data = [(index, inputs[index], targets[index]) for index in range(512)]


@everstep.resilient(state, everstep.Checkpointer())
def train(run):
    for step, (index, x, y) in run.steps(data, global_batch=12, until=steps, seed=1):
        loss = functional.mse_loss(model(x), y)
        (loss / run.accumulation).backward()
        if not run.rehearsing:
            time.sleep(pause_s)
        with run.update(step, loss=loss):
            optimizer.step()
            optimizer.zero_grad()
        if not run.rehearsing:
            with record.open("a") as lines:
                lines.write(f"{step} {' '.join(str(int(one)) for one in index)}\n")


train()
