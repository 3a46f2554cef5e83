"""The training script of the recovery benchmark under Everstep. Usage: recovery_everstep.py WIDTH LAYERS UNTIL [BATCH [EVERY]].

With EVERY it saves each so many steps, where there is a tier. STEP_SLEEP_S in the environment makes each step so much longer; with STEP_ON_GPU
it trains on one.
"""

import os
import sys
import time

import torch

import everstep

WIDTH, LAYERS, UNTIL = (int(argument) for argument in sys.argv[1:4])
BATCH, EVERY = (*(int(argument) for argument in sys.argv[4:6]), *(48, 0)[len(sys.argv[4:6]) :])
SLEEP_S = float(os.environ.get("STEP_SLEEP_S", "0"))
IS_ON_GPU = bool(os.environ.get("STEP_ON_GPU"))


def place() -> torch.device:
    if not IS_ON_GPU:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def main() -> None:
    device = place()
    everstep.init()
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(device)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    samples = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)) for number in range(256)]

    saves = everstep.Checkpointer(every=EVERY, durable_every=1_000_000) if EVERY else None

    @everstep.resilient(everstep.State(model=model, optimizer=optimizer), saves)
    def train(run: everstep.Run) -> None:
        for step, batch in run.steps(samples, global_batch=BATCH, until=UNTIL):
            loss = model(batch.to(device)).square().mean() / run.accumulation
            loss.backward()
            time.sleep(SLEEP_S)
            with run.update(step, loss=loss):
                optimizer.step()
                optimizer.zero_grad()

    train()


if __name__ == "__main__":
    main()
