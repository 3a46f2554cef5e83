"""A script that knows torch.distributed and nothing of ``resilient``, and what starts it. Usage: plain.py ROUNDS.

ROUNDS is a file: a list of rounds, each a list of runs that go at the same time: kind ("state" or "dict"), notes (a folder), until, world, port, and, if
wanted, dies_at, pace_s and environment. Everything heavy is imported once; each rank is a fork. Prints the ranks' exit codes, of each round and run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep.data import OrderedBatches


def train(given: dict[str, Any]) -> None:
    rank, world, notes = int(os.environ["RANK"]), given["world"], Path(given["notes"])
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    batches = OrderedBatches(64, global_batch=8, rank=rank, world_size=world, seed=1)
    if given["kind"] == "dict":
        net(torch.zeros(1, 8)).sum().backward()
        optimizer.step()  # makes its state, to be loaded into; the same on all ranks
        optimizer.zero_grad()
    torch.manual_seed(100 + rank)
    ckpt = everstep.Checkpointer(given.get("every"), given.get("durable_every"))
    state = everstep.State(model=model, optimizer=optimizer, batches=batches)
    as_dict = {"model": net.state_dict(), "optimizer": optimizer, "batches": batches}
    saved = state if given["kind"] == "state" else as_dict
    restored = ckpt.restore(saved)
    step = restored or 0
    samples = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    chosen = iter(batches)
    while step < given["until"]:
        if step == given.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        batch = samples[next(chosen)]
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        batches.committed()
        with (notes / f"losses-{rank}.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": step, "loss": loss.item(), "pid": os.getpid(), "restored": restored}) + "\n")
        step += 1
        ckpt.step(saved, step, optimizer=optimizer, is_last=step == given["until"])
        time.sleep(given.get("pace_s", 0.0))
    ckpt.close()
    if world > 1:
        dist.destroy_process_group()


def begun(run: dict[str, Any], rank: int) -> int:
    """The pid of a fork that trains as this rank."""
    pid = os.fork()
    if not pid:
        _become(run, rank)
    return pid


def _become(run: dict[str, Any], rank: int) -> NoReturn:
    variables = {"RANK": rank, "WORLD_SIZE": run["world"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": run["port"]}
    os.environ.update({name: str(value) for name, value in {**variables, **run.get("environment", {})}.items()})
    code = 1
    try:
        train(run)
        code = 0
    except BaseException:  # noqa: BLE001, the fork ends here, whatever comes
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    told = []
    for runs in json.loads(Path(sys.argv[1]).read_text()):
        pids = [[begun(run, rank) for rank in range(run["world"])] for run in runs]
        told.append([[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in of_run] for of_run in pids])
    print(json.dumps(told))


if __name__ == "__main__":
    main()
