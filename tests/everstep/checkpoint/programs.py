"""What ranks run in tests of saving and loading. Everything is drawn from seeds: the same full state in every world."""

from __future__ import annotations

import hashlib
import os
import signal
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import everstep
import everstep.checkpoint
from everstep.checkpoint.tiers import of_environment

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
)


# ------------------------------------------------------------------------------------------------ states


def assorted(seed: int) -> dict[str, Any]:
    """Every kind of value that a state may hold. ``seed`` 0 is what it is loaded into."""
    draw = torch.Generator().manual_seed(seed)
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) if seed else torch.zeros(*shape)

    tied = numbers(6, 5)
    return {
        "types": {str(one): _of_type(numbers(7, 3), one) for one in DTYPES},
        "sharded": distribute_tensor(numbers(37, 8), mesh, [Shard(0)]),
        "columns": distribute_tensor(numbers(6, 29), mesh, [Shard(1)]),
        "few": distribute_tensor(numbers(2, 3), mesh, [Shard(0)]),
        "replicated": distribute_tensor(numbers(5), mesh, [Replicate()]),
        "scalar": numbers(1)[0].clone(),
        "empty": numbers(0, 4),
        "transposed": numbers(9, 4).t(),
        "strided": numbers(16)[::2],
        "tied": [tied, tied],
        "nested": [{"a": numbers(3)}, [numbers(2)]],
        "words": "step " + str(seed),
        "numbers": [1, 2, seed],
        "pair": (seed, "x"),
    }


def digest(state: Any) -> str:
    """Of every bit of it, put together from all ranks; the names and the order count."""
    hashing = hashlib.sha256()
    _hash(state, "", hashing)
    return hashing.hexdigest()


def _hash(value: Any, name: str, hashing: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            _hash(value[key], f"{name}.{key}", hashing)
    elif isinstance(value, list) and not all(isinstance(one, int) for one in value):
        for number, one in enumerate(value):
            _hash(one, f"{name}.{number}", hashing)
    elif isinstance(value, Tensor):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        told = whole.detach().contiguous().reshape(-1).view(torch.uint8) if whole.numel() else torch.empty(0)
        hashing.update(f"{name} {tuple(whole.shape)} {whole.dtype}".encode() + told.numpy().tobytes())
    else:
        hashing.update(f"{name} {value!r}".encode())


def _of_type(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    return (numbers * 3).to(dtype) if dtype is not torch.bool else numbers > 0


# ------------------------------------------------------------------------------------------------ plain dictionaries


def save(rank: int, world: int, how: str, step: int, durable: bool = False) -> str:
    """Saves ``assorted(step)``; the state is then changed in place, which must not be seen in what was saved."""
    state = assorted(step)
    told = digest(state)
    if how == "dcp":
        dcp.save(state, storage_writer=everstep.TieredWriter(step, durable=durable))
    elif how == "async":
        saving = dcp.async_save(state, storage_writer=everstep.TieredWriter(step, durable=durable))
        spoil(state)
        saving.result()
    elif how == "overlap":
        saving = dcp.async_save(state, storage_writer=everstep.TieredWriter(step, durable=durable, overlap=True))
        saving.staging_completion.result()
        spoil(state)
        saving.upload_completion.result()
    elif how == "direct":
        everstep.checkpoint.save(state, step, durable=durable)
    else:
        saving = everstep.checkpoint.async_save(state, step, durable=durable)
        saving.staged.result()
        spoil(state)
        saving.sealed.result()
    dist.barrier()
    return told


def spoil(state: Any) -> None:
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list):
        for one in state:
            spoil(one)
    elif isinstance(state, Tensor):
        (state.to_local() if isinstance(state, DTensor) else state).zero_()


def load(rank: int, world: int, how: str = "dcp", step: int | None = None, **options: Any) -> dict[str, Any]:
    """What was found, and how: {step, digest, counts, told, reads}; ``reads`` are this rank's calls that read the object store."""
    state = assorted(0)
    reader = everstep.TieredReader(step, **options)
    before = store_reads()
    if how == "direct":
        found = everstep.checkpoint.load(state, step, **options)
        return {"step": found, "digest": digest(state)}
    if reader.step is not None:
        dcp.load(state, storage_reader=reader)
    return {
        "step": reader.step,
        "digest": digest(state),
        "counts": reader.counts,
        "told": reader.told,
        "reads": store_reads() - before,
    }


def load_with(rank: int, world: int, options: dict[str, Any]) -> dict[str, Any]:
    return load(rank, world, **options)


def store_reads() -> int:
    cold = of_environment().cold
    return cold.counts.reads if cold is not None else 0


def wait(rank: int, world: int, step: int, replicas: int, durable: bool) -> dict[str, Any]:
    return dict(of_environment().wait(step, replicas=replicas, is_durable=durable, seconds=60))


# ------------------------------------------------------------------------------------------------ models


def trained(rank: int, world: int, kind: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after a step, the same in every world for one seed but for rounding: what is saved is what counts."""
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(11, 21), nn.LayerNorm(21), nn.Linear(21, 5, bias=False))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp2":
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    elif kind == "hsdp":
        shape = (world // 2, 2) if world > 2 else (world, 1)
        fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(8, 11)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def save_model(rank: int, world: int, kind: str, step: int, durable: bool) -> str:
    model, optimizer = trained(rank, world, kind, step)
    return _saved(model, optimizer, step, durable)


def pass_on_model(rank: int, world: int, kind: str, step: int, durable: bool) -> tuple[str, dict[str, int]]:
    """Loads the newest step into other weights, tells what it then has, and saves that as ``step``."""
    model, optimizer = trained(rank, world, kind, 999)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    reader = everstep.TieredReader()
    dcp.load(state, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return _saved(model, optimizer, step, durable), reader.counts


def _saved(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, durable: bool) -> str:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, storage_writer=everstep.TieredWriter(step, durable=durable))
    return digest(state)


# ------------------------------------------------------------------------------------------------ faults and costs


def save_into_a_dying_tier(rank: int, world: int, step: int, tier: int) -> str:
    """The tier is killed between the copy and the seal; what the caller is told, after which it must be able to go on."""
    writer = everstep.TieredWriter(step)
    staged = writer.stage({"w": torch.ones(1000)})
    os.kill(tier, signal.SIGKILL)
    try:
        dcp.save(staged, storage_writer=writer)
    except BaseException as error:  # noqa: BLE001  (DCP raises one)
        return str(error)
    return "no error"


def save_refused(rank: int, world: int, step: int, nbytes: int, how: str) -> str:
    state = {"w": torch.zeros(nbytes, dtype=torch.uint8)}
    try:
        if how == "dcp":
            dcp.save(state, storage_writer=everstep.TieredWriter(step))
        else:
            dcp.async_save(state, storage_writer=everstep.TieredWriter(step)).result()
    except BaseException as error:  # noqa: BLE001  (DCP raises one)
        return str(error)
    return "no error"


def count_plans(rank: int, world: int, sizes: list[int]) -> list[tuple[int, int]]:
    """For states of these many rows, saved one behind the other: (plans made, objects gathered) by each save, on this rank."""
    counted: list[tuple[int, int]] = []
    plans = objects = 0
    create, gather = DefaultSavePlanner.create_local_plan, dist.gather_object

    def counting_create(self: DefaultSavePlanner) -> Any:
        nonlocal plans
        plans += 1
        return create(self)

    def counting_gather(*arguments: Any, **named: Any) -> Any:
        nonlocal objects
        objects += 1
        return gather(*arguments, **named)

    DefaultSavePlanner.create_local_plan, dist.gather_object = counting_create, counting_gather  # type: ignore[method-assign]
    try:
        for step, rows in enumerate(sizes):
            before = (plans, objects)
            everstep.checkpoint.save({"w": torch.ones(rows, 4), "step": step}, step + 1, durable=True)
            counted.append((plans - before[0], objects - before[1]))
    finally:
        DefaultSavePlanner.create_local_plan, dist.gather_object = create, gather  # type: ignore[method-assign]
    return counted


# ------------------------------------------------------------------------------------------------ exports


def load_files(rank: int, world: int, folder: str) -> str:
    """By DCP's own reader."""
    state = assorted(0)
    dcp.load(state, checkpoint_id=folder)
    return digest(state)


def weights_of(rank: int, world: int, seed: int) -> dict[str, Tensor]:
    """Of the model of ``save_model(kind, seed)``, unsharded."""
    model, optimizer = trained(rank, world, "ddp", seed)
    return {name: value.clone() for name, value in get_state_dict(model, optimizer)[0].items()}


# ------------------------------------------------------------------------------------------------ corners of DCP


def save_with_cached_plans(rank: int, world: int, steps: list[int]) -> list[str]:
    """DCP's planner hands out an old plan, with an old save's name in it, from the second save on."""
    told = []
    for step in steps:
        state = assorted(step)
        dcp.save(state, storage_writer=everstep.TieredWriter(step), planner=DefaultSavePlanner(enable_plan_caching=True))
        told.append(digest(state))
    return told


def save_in_a_part_of_the_world(rank: int, world: int, step: int) -> str | None:
    """Rank 1 alone, as rank 0 of a group of its own, after it has staged as rank 1."""
    group = dist.new_group([1])
    if rank == 0:
        return None
    state = {"w": torch.arange(100.0), "words": "x"}
    dcp.async_save(state, storage_writer=everstep.TieredWriter(step), process_group=group).result()
    found = {"w": torch.zeros(100), "words": ""}
    dcp.load(found, storage_reader=everstep.TieredReader(step), process_group=group)
    return f"{torch.equal(found['w'], state['w'])} {found['words']}"


def save_without_collectives(rank: int, world: int, step: int) -> str:
    try:
        dcp.save({"w": torch.ones(3)}, storage_writer=everstep.TieredWriter(step), use_collectives=False)
    except BaseException as error:  # noqa: BLE001  (whatever DCP makes of it)
        return str(error)
    return "no error"


def load_with_another_shape(rank: int, world: int, step: int) -> str:
    try:
        everstep.checkpoint.load({"scalar": torch.zeros(3)}, step)
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "no error"
