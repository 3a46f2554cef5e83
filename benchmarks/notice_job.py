"""A rank that trains next to nothing and notes when it is told that its node is about to go: a line with the time, in Unix seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import everstep

LOOKS_S = 0.002
notes = Path(sys.argv[1])
run = everstep.init()
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
state = everstep.State(model=model, optimizer=optimizer)
data = [(torch.ones(8), torch.ones(8)) for _ in range(64)]


def watch() -> None:
    """Notes each notice once."""
    was_told = False
    while True:
        is_told = run.notice is not None
        if is_told and not was_told:
            with notes.open("a") as file:
                file.write(f"{os.environ['EVERSTEP_NODE_ID']} {time.time()}\n")
        was_told = is_told
        time.sleep(LOOKS_S)


threading.Thread(target=watch, daemon=True).start()


@everstep.resilient(state, everstep.Checkpointer())
def train(run: everstep.Run) -> None:
    for step, (x, y) in run.steps(data, global_batch=4, until=1_000_000, seed=1):
        loss = functional.mse_loss(model(x), y)
        (loss / run.accumulation).backward()
        time.sleep(0.05)
        with run.update(step, loss=loss):
            optimizer.step()
            optimizer.zero_grad()


train()
