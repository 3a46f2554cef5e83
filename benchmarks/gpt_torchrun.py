"""The demonstration's GPT as a plain torch script under torchrun, with a checkpoint every tenth step.

Usage: gpt_torchrun.py FOLDER. Each rank appends a line (Unix seconds, step, pid) to FOLDER/steps-RANK.
"""

import os
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from everstep.demo.train_gpt import GPT, Characters

FOLDER = Path(sys.argv[1])
BATCH = 32
EVERY = 10


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Characters("\n\n".join(topics[name] for name in sorted(topics)))
    net = GPT(data.vocabulary)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    saved, step = FOLDER / "checkpoint", 0
    if saved.exists():
        found = torch.load(saved, weights_only=True)
        net.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    model = DistributedDataParallel(net)
    share = BATCH // world
    with (FOLDER / f"steps-{rank}").open("a", buffering=1) as told:
        while True:
            first = step * BATCH + rank * share
            codes, targets = default_collate([data[(first + number) % len(data)] for number in range(share)])
            functional.cross_entropy(model(codes).flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            told.write(f"{time.time()} {step} {os.getpid()}\n")
            step += 1
            if rank == 0 and step % EVERY == 0:
                draft = saved.with_suffix(".draft")
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
                draft.replace(saved)


if __name__ == "__main__":
    main()
