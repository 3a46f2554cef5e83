"""The same model as a plain torch script under torchrun, with a checkpoint every tenth step.

Usage: recovery_torchrun.py WIDTH LAYERS UNTIL FOLDER. Each rank appends a line (Unix seconds, step, pid) to FOLDER/steps-RANK.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

WIDTH, LAYERS, UNTIL = (int(argument) for argument in sys.argv[1:4])
FOLDER = Path(sys.argv[4])
EVERY = 10


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    saved, step = FOLDER / "checkpoint", 0
    if saved.exists():
        found = torch.load(saved, weights_only=True)
        net.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    model = torch.nn.parallel.DistributedDataParallel(net)
    samples = torch.stack([torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)) for number in range(256)])
    with (FOLDER / f"steps-{rank}").open("a", buffering=1) as told:
        while step < UNTIL:
            first = (step * 48 + rank * 48 // world) % 200
            model(samples[first : first + 48 // world]).square().mean().backward()
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
