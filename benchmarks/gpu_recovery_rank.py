"""One rank of the GPU benchmark. Usage: gpu_recovery_rank.py WIDTH."""

import os
import sys

import torch

import everstep

WIDTH, LAYERS = int(sys.argv[1]), 4


def main() -> None:
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    everstep.init()
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(device)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    samples = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)) for number in range(256)]

    @everstep.resilient(everstep.State(model=model, optimizer=optimizer))
    def train(run: everstep.Run) -> None:
        for step, batch in run.steps(samples, global_batch=48, until=1_000_000):
            loss = model(batch.to(device)).square().mean() / run.accumulation
            loss.backward()
            with run.update(step, loss=loss):
                optimizer.step()
                optimizer.zero_grad()

    train()


if __name__ == "__main__":
    main()
