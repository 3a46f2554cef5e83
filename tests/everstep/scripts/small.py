"""A small training script for what the kill test does not cover. Usage: small.py KIND NOTES UNTIL FAULTS."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import torch

import everstep
from everstep import testing

KIND, NOTES, UNTIL = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
PACE_S = 0.02


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
                time.sleep(PACE_S)
        return f"trained {entered} steps, left as rank {run.rank} of {run.world_size}"

    said = train()
    (NOTES / f"left-{os.getpid()}").write_text(said)


if __name__ == "__main__":
    main()
