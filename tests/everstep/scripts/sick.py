"""A script whose loss is sick now and then, or that hangs. Usage: sick.py NOTES UNTIL FAULTS PLAN, the last being JSON.

PLAN: policy (arguments of LossPolicy, or null), sick (steps at which the loss is NaN), hangs ([rank, step], once), pace_s, saves (every how many steps).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import everstep
from everstep import testing

NOTES, UNTIL, PLAN = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[4])


def hang_once() -> None:
    try:
        os.close(os.open(NOTES / "hung", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    while True:
        time.sleep(0.05)


def main() -> None:
    testing.arm(sys.argv[3])
    everstep.init()
    torch.manual_seed(1)
    net = torch.nn.Linear(3, 1)
    model = torch.nn.parallel.DistributedDataParallel(net) if PLAN.get("ddp") else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = [(torch.full((3,), number / 50), torch.ones(1)) for number in range(50)]
    policy = everstep.LossPolicy(**PLAN["policy"]) if PLAN.get("policy") else None
    checkpointer = everstep.Checkpointer(every=PLAN["saves"]) if PLAN.get("saves") else None

    @everstep.resilient(everstep.State(model=model, optimizer=optimizer), checkpointer, loss=policy)
    def train(run: everstep.Run) -> None:
        for step, (inputs, targets) in run.steps(samples, global_batch=12, until=UNTIL):
            if not run.rehearsing and [run.rank, step] == PLAN.get("hangs"):
                hang_once()
            loss = (model(inputs) - targets).square().mean() / run.accumulation
            if not run.rehearsing and step in PLAN.get("sick", []):
                loss = loss * float("nan")
            loss.backward()
            with run.update(step, loss=loss):
                optimizer.step()
                optimizer.zero_grad()
            if not run.rehearsing:
                with (NOTES / f"steps-{run.rank}.jsonl").open("a") as stream:
                    stream.write(json.dumps({"step": step, "weight": net.weight.sum().item(), "pid": os.getpid()}) + "\n")
                time.sleep(PLAN.get("pace_s", 0.0))

    train()
    (NOTES / f"left-{os.getpid()}").write_text(json.dumps(net.weight.tolist()))


if __name__ == "__main__":
    main()
