"""One of two ranks of a sharded model whose rank 1 is struck. Usage: faulted_shards.py RANK FOLDER. Says which parameters have gradients that are no numbers."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from everstep.testing import at, faults, inject, point

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])


def sick(model: torch.nn.Module) -> list[str]:
    """Of this rank's shards."""
    parts = {name: parameter.grad.to_local() for name, parameter in model.named_parameters()}
    return [name for name, part in parts.items() if part.isnan().any()]


def main() -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(FOLDER / "store"), 2), rank=RANK, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    told = {}
    strikes = (at("backward", rank=1, step=1).corrupt("nan"), at("after-reduce", rank=1, step=2).corrupt("nan"))
    with inject(*strikes, path=FOLDER / f"faults-{RANK}.json") as injected:
        faults.hook(model, None)
        for step in range(4):
            faults.stand(RANK, step, 1)
            model.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            point("after-reduce")
            told[step] = sick(model)
        waiting = len(injected.waiting)
    (FOLDER / f"told-{RANK}.json").write_text(json.dumps({"sick": told, "waiting": waiting}))
    dist.destroy_process_group()


main()
