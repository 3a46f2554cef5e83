"""What a user's own test of a training script looks like. Prints a line for each thing that is as it should be, and stops at the first that is not."""

from __future__ import annotations

import time

import pytest
import torch

import everstep
from everstep.testing import InjectedFault, at, inject

SAMPLES = [(torch.full((3,), number / 50), torch.ones(1)) for number in range(50)]


def main() -> None:
    everstep.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    took: dict[int, float] = {}

    @everstep.resilient(everstep.State(model=model, optimizer=optimizer))
    def train(run: everstep.Run, until: int) -> None:
        began = time.monotonic()
        for step, (inputs, targets) in run.steps(SAMPLES, global_batch=10, until=until):
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            with run.update(step, loss=loss):
                optimizer.step()
                optimizer.zero_grad()
            took[step], began = time.monotonic() - began, time.monotonic()

    with inject(at("after-reduce", step=2).error()) as injected:
        with pytest.raises(InjectedFault, match="rank 0, step 2, phase after-reduce"):
            train(10)
        assert injected.waiting == ()
    optimizer.zero_grad()
    print("an error")

    with inject(at("backward", rank=0, step=3).corrupt("nan")) as injected:
        train(6)
        assert not injected.waiting
    assert model.bias.isnan().all(), "the loss of step 3 was a number, and its gradient was not: that of step 4 shows it"
    print("a sick gradient")

    with inject(at("forward", step=7).hang(0.2), at("vote", step=(8, 10)).slow(seconds=0.2)):
        train(11)
    assert [step for step in range(6, 11) if took[step] >= 0.2] == [7, 8, 9], took
    print("slow and hung")

    train(12)
    print("nothing outside of the block")


if __name__ == "__main__":
    main()
