"""One rank of the overhead benchmark. Usage: overhead_rank.py plain|resilient SOCKET BLOCK PRODUCTS SLEEP_MS.

A step is a forward and a backward of 4 layers of 512² under DDP on gloo, PRODUCTS products of matrices and SLEEP_MS of waiting, as for a device. Before
each block of steps it asks for its turn at SOCKET, and afterwards says how many seconds the block took.
"""

import itertools
import os
import socket
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import everstep

KIND, SOCKET = sys.argv[1:3]
BLOCK, PRODUCTS = (int(argument) for argument in sys.argv[3:5])
SLEEP_S = float(sys.argv[5]) / 1000
WIDTH, LAYERS, BATCH = 512, 4, 32

torch.set_num_threads(1)
torch.manual_seed(0)
SAMPLES = [torch.randn(WIDTH) for _ in range(1024)]
MATRIX = torch.randn(256, 256) / 16


class Turns:
    """Asks for each block's turn, once connected."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._began = 0.0

    def before(self, number: int) -> None:
        """Called before each step, numbered from 0."""
        if number % BLOCK:
            return
        words = f"{time.perf_counter() - self._began}\n"
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.connect(SOCKET)
            words = f"{KIND}\n"
        self._connection.sendall(words.encode())
        if not self._connection.recv(1):
            sys.exit(0)
        self._began = time.perf_counter()


def compute(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    product = MATRIX
    for _ in range(PRODUCTS):
        product = product @ MATRIX
    time.sleep(SLEEP_S)
    return model(batch).square().mean()


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    model = DistributedDataParallel(net)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def plain() -> None:
    dist.init_process_group("gloo")
    model, optimizer = parts()
    sampler = DistributedSampler(SAMPLES, seed=0)  # type: ignore[arg-type, var-annotated]
    loader = DataLoader(SAMPLES, BATCH // dist.get_world_size(), sampler=sampler)  # type: ignore[arg-type, var-annotated]

    def batches() -> Iterator[torch.Tensor]:
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    turns = Turns()
    for number, batch in enumerate(batches()):
        turns.before(number)
        compute(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def resilient() -> None:
    everstep.init()
    model, optimizer = parts()
    turns = Turns()

    @everstep.resilient(everstep.State(model=model, optimizer=optimizer))
    def train(run: everstep.Run) -> None:
        for step, batch in run.steps(SAMPLES, global_batch=BATCH, until=1_000_000):
            if not run.rehearsing:
                turns.before(step)
            loss = compute(model, batch) / run.accumulation
            loss.backward()
            with run.update(step, loss=loss):
                optimizer.step()
                optimizer.zero_grad()

    train()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    {"plain": plain, "resilient": resilient}[KIND]()
