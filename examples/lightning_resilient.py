"""A LightningModule in the resilient loop: the module stays as it is, and the loop takes the place of Lightning's Trainer."""

from __future__ import annotations

import sys

import lightning
import torch
from torch import nn
from torch.nn.functional import mse_loss

import everstep

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        x, y = batch
        return mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


run = everstep.init()
torch.manual_seed(0)
module = Regression()
optimizer = module.configure_optimizers()
state = everstep.State(model=module, optimizer=optimizer)
generator = torch.Generator().manual_seed(1)
data = list(zip(torch.randn(512, 16, generator=generator), torch.randn(512, 4, generator=generator), strict=True))


@everstep.resilient(state, everstep.Checkpointer())
def train(run: everstep.Run) -> None:
    for step, batch in run.steps(data, global_batch=32, until=STEPS):
        loss = module.training_step(batch, step)
        (loss / run.accumulation).backward()
        with run.update(step, loss=loss):
            optimizer.step()
            optimizer.zero_grad()


train()
print(f"trained {run.step} steps as rank {run.rank} of {run.world_size}", flush=True)
