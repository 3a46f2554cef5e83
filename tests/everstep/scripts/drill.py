"""What is trained while a schedule of faults goes over it. Usage: drill.py MODE NOTES UNTIL FAULTS PACE_S [NAMESPACE].

A file "hurry" in NOTES has it wait no longer between steps; a file "hang" has it pass the point "drill/hang" in each step. The model and its loss are those of tokens.py. Each rank notes what it has committed: the samples, the loss, and a digest of its parameters.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import tokens
import torch

import everstep
from everstep import testing

MODE, NOTES, UNTIL = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
PACE_S = float(sys.argv[5])
SAVE_EVERY = 4
"""As long as the job file says nothing else."""


def digest(net: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in net.parameters():
        found.update(tokens.inside(parameter.detach()).contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    if len(sys.argv) > 6:
        os.environ["EVERSTEP_NAMESPACE"] = sys.argv[6]
    testing.arm(sys.argv[4])
    run = everstep.init()
    torch.manual_seed(5)
    net = tokens.Net()
    model = tokens.wrapped(net, MODE, run)
    optimizer, scheduler = tokens.optimizer_of(net)
    state = everstep.State(model=model, optimizer=optimizer, scheduler=scheduler)

    @everstep.resilient(state, everstep.Checkpointer(SAVE_EVERY, SAVE_EVERY))
    def train(run: everstep.Run) -> None:
        for step, batch in run.steps(tokens.Samples(), global_batch=tokens.GLOBAL_BATCH, until=UNTIL, collate=list):
            attempt = {"attempt": run.generation, "world": run.world_size, "rank": run.rank}
            if not run.rehearsing and (NOTES / "hang").exists():
                testing.point("drill/hang")
            total, count = tokens.loss_sum(model, [one for _, one in batch])
            loss = total / run.weight(count)
            loss.backward()
            with run.update(step, loss=loss) as update:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if run.rehearsing:
                continue
            told = {"step": step, **attempt, "samples": [index for index, _ in batch], "loss": update.loss, "digest": digest(net)}
            with (NOTES / f"{os.getpid()}.jsonl").open("a") as stream:
                stream.write(json.dumps(told) + "\n")
            time.sleep(0.0 if (NOTES / "hurry").exists() else PACE_S)

    train()


if __name__ == "__main__":
    main()
