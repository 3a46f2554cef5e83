"""The recovery benchmark's model under torchft: this process is one replica group. Usage: torchft_steps.py WIDTH LAYERS UNTIL FOLDER.

GROUP names it, TORCHFT_LIGHTHOUSE is where the lighthouse listens. It appends a line (Unix seconds, step, pid, participants) to FOLDER/steps-GROUP
for each committed step. DDP's hook is repaired unless STOCK is set: as published, survivors on gloo end with an AssertionError when a peer dies.
DDP compares the hook's annotations with types, so they must not be text.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

WIDTH, LAYERS, UNTIL = (int(argument) for argument in sys.argv[1:4])
FOLDER = Path(sys.argv[4])
GROUP = int(os.environ["GROUP"])
TIMEOUT = timedelta(seconds=10)


def _repaired_hook(manager: Manager, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A future that is complete even if the reduction has failed: the manager then votes the step down."""
    work = manager.allreduce(bucket.buffer())
    work.wait()
    future = getattr(work.get_future(), "_fut", None)
    if future is None:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
    return future


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    adam = torch.optim.Adam(net.parameters(), lr=1e-4)

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=1,
        replica_id=f"group-{GROUP}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=TIMEOUT,
        quorum_timeout=timedelta(seconds=60),
    )
    if "STOCK" not in os.environ:
        DistributedDataParallel._comm_hook = staticmethod(_repaired_hook)  # noqa: SLF001, what is repaired is private
    model = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, adam)
    samples = torch.stack([torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)) for number in range(256)])
    with (FOLDER / f"steps-{GROUP}").open("a", buffering=1) as told:
        while (step := manager.current_step()) < UNTIL:
            first = (step * 48 + GROUP * 16) % 200
            optimizer.zero_grad()
            model(samples[first : first + 16]).square().mean().backward()
            optimizer.step()
            if manager.current_step() > step:
                told.write(f"{time.time()} {step} {os.getpid()} {manager.num_participants()}\n")


main()
