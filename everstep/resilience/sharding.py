"""FSDP2 over changes of membership: the wrapped module, its parameters and the optimizer stay; what is inside of them takes another seat.

A process wraps its model before it knows its rank, on a mesh of one, and rehearses so. On joining a generation it *takes a seat*: of S shards
it holds the k-th. A seat that has not changed changes nothing. Otherwise the local tensors inside the parameters (DTensors of an unchanged
global shape) are replaced by those of the new seat; the parameter objects, the module and the optimizer are the same as before.

1. The mesh is always that of the logical ranks 0 … S-1, so that it does not depend on which replica this is. Its group is a StableGroup: torch
   finds it by name, FSDP holds the object, and neither has to be told of a new generation.
2. After a forward or backward that was left, ``come_to_rest`` is the first thing to be called: until then the module holds unsharded
   parameters. Torch's ``reset_iter_state`` leaves gradients on some of those, to which the next backward would add: they are dropped here.
3. A new seat is prepared beside the old one and adopted when everybody has theirs, because others may still read the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from everstep.checkpoint.torch_parts import rows_of
from everstep.errors import ShardsDoNotFit, UnsupportedWrapper

from .own_groups import OwnGroups

SHARD_GROUP = "everstep-shard"
DIMENSION = "shard"


@dataclass(frozen=True, order=True)
class Seat:
    """``shards`` pieces of ``ceil(length / shards)`` rows each, the last ones shorter or empty; this is the one with the number ``index``."""

    shards: int = 1
    index: int = 0

    def rows(self, length: int) -> tuple[int, int]:
        """First row and end, of a dimension of that length."""
        return rows_of(length, self.shards, self.index)


WHOLE = Seat()


def seat_of(rank: int, world_size: int, shards: int | None) -> Seat:
    """Rank ``r`` holds shard ``r % shards``; without a number there are as many shards as ranks.

    Raises:
        ShardsDoNotFit: the ranks are not a whole number of replicas.
    """
    wanted = world_size if shards is None else shards
    if world_size % wanted:
        message = f"{world_size} ranks are not a whole number of replicas of {wanted} shards each; run.mesh(shard={wanted}) needs a multiple of {wanted}"
        raise ShardsDoNotFit(message)
    return Seat(wanted, rank % wanted)


# ---------------------------------------------------------------------------------------------------- what FSDP holds


def _param_groups(model: torch.nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield from module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001, checked at import


def is_sharded(model: torch.nn.Module) -> bool:
    return any(isinstance(module, FSDPModule) for module in model.modules())


def sharded_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Those that FSDP reduces."""
    return [fsdp_param.sharded_param for group in _param_groups(model) for fsdp_param in group.fsdp_params]


def come_to_rest(model: torch.nn.Module) -> None:
    """After a step that was left: sharded parameters are in their places, and nothing of the step is left on the unsharded ones."""
    groups = list(_param_groups(model))
    for group in groups:
        group._all_gather_result = None  # noqa: SLF001, a reset would wait for a collective that will never be
    for module in model.modules():
        if isinstance(module, FSDPModule) and module._get_fsdp_state()._is_root:  # noqa: SLF001
            module.reset_iter_state()
    for group in groups:
        group._to_sharded()  # noqa: SLF001
        for fsdp_param in group.fsdp_params:
            if hasattr(fsdp_param, "_unsharded_param"):
                fsdp_param._unsharded_param.grad = None  # noqa: SLF001
            fsdp_param.unsharded_accumulated_grad = None


def put_away(model: torch.nn.Module) -> None:
    """Between steps: an evaluation without a backward leaves the root's parameters unsharded, and they are not what is to be read."""
    for group in _param_groups(model):
        group._to_sharded()  # noqa: SLF001


def check_supported(model: torch.nn.Module) -> None:
    """Raises UnsupportedWrapper for what cannot take another seat."""
    for group in _param_groups(model):
        info = group.mesh_info
        own = SHARD_GROUP in info.mesh._dim_group_names  # noqa: SLF001
        if info.mesh.ndim != 1 or not own:
            message = (
                "fully_shard(...) was given another mesh than run.mesh(), so its groups cannot be remade; pass mesh=run.mesh()"
            )
            raise UnsupportedWrapper(message)
        after = group.post_forward_mesh_info
        is_other = any(fsdp_param.is_dtensor or fsdp_param.fsdp_placement.dim != 0 for fsdp_param in group.fsdp_params)
        if is_other or (after is not None and after is not info):
            message = (
                "fully_shard(...) is supported with reshard_after_forward=True or False, shards of dimension 0 and plain parameters"
            )
            raise UnsupportedWrapper(message)


def room(parameter: torch.nn.Parameter, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """For an optimizer's tensor that is to come: sharded as its parameter is, if it has that one's shape."""
    if isinstance(parameter, DTensor) and shape == tuple(parameter.shape):
        own = parameter._local_tensor  # noqa: SLF001
        meta = TensorMeta(parameter.shape, parameter.stride(), dtype)
        spec = DTensorSpec(parameter.device_mesh, parameter.placements, tensor_meta=meta)
        return DTensor(torch.empty(own.shape, dtype=dtype, device=own.device), spec, requires_grad=False)
    return torch.empty(shape, dtype=dtype, device=parameter.device if shape else torch.device("cpu"))


# ---------------------------------------------------------------------------------------------------- seats


@dataclass
class Prepared:
    """A seat that is filled before it is taken. ``locals`` has a tensor for each parameter and each of its optimizer's tensors, by ``id``."""

    seat: Seat
    mesh: DeviceMesh
    locals: dict[int, torch.Tensor] = field(default_factory=dict)
    padded: dict[int, torch.Tensor] = field(default_factory=dict)
    owners: list[torch.Tensor] = field(default_factory=list)
    """Whose ``id`` it is: while they are kept here, no other tensor has it."""


class Sharding:
    """The seat of this process and its mesh. ``shards``: how many, None for one a rank; ``is_wanted`` is False until a mesh is asked for."""

    def __init__(self, groups: OwnGroups) -> None:
        self._groups = groups
        self.is_wanted = False
        self.shards: int | None = None
        self.every = 1
        """Steps between two replicas of a shard, where no other replica of the model is."""
        self.seat = WHOLE
        self._mesh: DeviceMesh | None = None

    def want(self, shards: int | None, every: int) -> None:
        """Raises ShardsDoNotFit when asked for two numbers of shards."""
        if self.is_wanted and shards != self.shards:
            message = f"run.mesh() was asked for {self.shards or 'all ranks'} as shards before, now for {shards or 'all ranks'}; a run has one"
            raise ShardsDoNotFit(message)
        if shards is not None and shards < 1:
            message = f"run.mesh(shard={shards}): there is at least one shard"
            raise ShardsDoNotFit(message)
        if every < 1:
            message = f"run.mesh(replicate_every={every}): a copy is made after each so many steps, at least each"
            raise ShardsDoNotFit(message)
        self.is_wanted, self.shards, self.every = True, shards, every
        self._groups.declare(SHARD_GROUP, self._members)

    def mesh(self, device_type: str) -> DeviceMesh:
        if self._mesh is None:
            self._mesh = self._mesh_of(self.seat, device_type)
        return self._mesh

    def prepare(self, state_model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, seat: Seat) -> Prepared:
        """Room for the tensors of a seat, zeros where there is nothing to take from; what of it lies in this process's own rows is copied."""
        prepared = Prepared(seat, self._mesh_of(seat, self._device_type()))
        with torch.no_grad():
            for group in _param_groups(state_model):
                for fsdp_param in group.fsdp_params:
                    parameter = fsdp_param.sharded_param
                    self._prepare_one(prepared, parameter, parameter)
                    own = optimizer.state.get(parameter, {}) if optimizer is not None else {}
                    for value in own.values():
                        if isinstance(value, DTensor):
                            self._prepare_one(prepared, parameter, value)
        return prepared

    def adopt(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, prepared: Prepared) -> None:
        """Takes the seat. The parameters are the same objects, with other local tensors."""
        infos = {id(group.mesh_info): group.mesh_info for group in _param_groups(model)}
        for info in infos.values():
            info.mesh, info.shard_mesh_size, info.shard_mesh_rank = prepared.mesh, prepared.seat.shards, prepared.seat.index
        for group in _param_groups(model):
            group._all_gather_output = torch.empty(0, device=group.device)  # noqa: SLF001
            for fsdp_param in group.fsdp_params:
                parameter = fsdp_param.sharded_param
                _put_inside_state(optimizer, parameter, prepared)
                _put_inside(parameter, prepared)
                _reseat(fsdp_param, prepared)
        self.seat, self._mesh = prepared.seat, prepared.mesh

    def current(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Prepared:
        """The seat as it is, to be adopted again."""
        found = Prepared(self.seat, self._mesh or self._mesh_of(self.seat, "cpu"))
        for group in _param_groups(model):
            for fsdp_param in group.fsdp_params:
                parameter = fsdp_param.sharded_param
                own = optimizer.state.get(parameter, {}) if optimizer is not None else {}
                for tensor in (parameter, *own.values()):
                    if isinstance(tensor, DTensor):
                        found.locals[id(tensor)] = tensor._local_tensor  # noqa: SLF001
                        found.owners.append(tensor)
                padded = fsdp_param._sharded_param_data.view(fsdp_param.padded_sharded_param_size)  # noqa: SLF001
                found.padded[id(parameter)] = padded
        return found

    @staticmethod
    def lengths(tensors: list[torch.Tensor]) -> list[int | None]:
        """How many rows the whole of each has, None for one that is not sharded."""
        return [tensor.shape[0] if isinstance(tensor, DTensor) else None for tensor in tensors]

    # ------------------------------------------------------------ inside

    def _members(self, rank: int, world_size: int) -> range:
        seat = seat_of(rank, world_size, self.shards)
        return range(rank - seat.index, rank - seat.index + seat.shards)

    def _device_type(self) -> str:
        return self._mesh.device_type if self._mesh is not None else "cpu"

    @staticmethod
    def _mesh_of(seat: Seat, device_type: str) -> DeviceMesh:
        mesh = DeviceMesh(
            device_type, torch.arange(seat.shards), mesh_dim_names=(DIMENSION,), _init_backend=False, _rank=seat.index
        )
        mesh._dim_group_names = [SHARD_GROUP]  # type: ignore[list-item]  # noqa: SLF001
        return mesh

    def _prepare_one(self, prepared: Prepared, parameter: torch.nn.Parameter, tensor: DTensor) -> None:
        old = tensor._local_tensor  # noqa: SLF001
        if tensor.shape != parameter.shape:
            message = f"the optimizer has a tensor of shape {tuple(tensor.shape)} for a sharded parameter of shape {tuple(parameter.shape)}"
            raise UnsupportedWrapper(message)
        length = tensor.shape[0]
        first, end = prepared.seat.rows(length)
        piece = -(-length // prepared.seat.shards)
        padded = torch.zeros((piece, *tensor.shape[1:]), dtype=old.dtype, device=old.device)
        local = padded[: end - first]
        had_first, had_end = self.seat.rows(length)
        common_first, common_end = max(first, had_first), min(end, had_end)
        if common_first < common_end:
            local[common_first - first : common_end - first].copy_(old[common_first - had_first : common_end - had_first])
        prepared.locals[id(tensor)] = local
        prepared.padded[id(tensor)] = padded
        prepared.owners.append(tensor)


def _put_inside_state(optimizer: torch.optim.Optimizer | None, parameter: torch.nn.Parameter, prepared: Prepared) -> None:
    """An optimizer state that has come since the seat was prepared belongs to a state that is given up."""
    own = optimizer.state.get(parameter, {}) if optimizer is not None else {}
    sharded = [value for value in own.values() if isinstance(value, DTensor)]
    if optimizer is not None and any(id(value) not in prepared.locals for value in sharded):
        del optimizer.state[parameter]
        return
    for value in sharded:
        _put_inside(value, prepared)


def _put_inside(tensor: DTensor, prepared: Prepared) -> None:
    spec = tensor._spec  # noqa: SLF001
    tensor._local_tensor = prepared.locals[id(tensor)]  # noqa: SLF001
    tensor._spec = DTensorSpec(prepared.mesh, spec.placements, tensor_meta=spec.tensor_meta)  # noqa: SLF001
    tensor.grad = None


def _reseat(fsdp_param: Any, prepared: Prepared) -> None:
    """As the constructor of FSDPParam does it, for an existing one."""
    parameter = fsdp_param.sharded_param
    local, padded = prepared.locals[id(parameter)], prepared.padded[id(parameter)]
    fsdp_param._shard_mesh = fsdp_param._spmd_mesh = prepared.mesh  # noqa: SLF001
    fsdp_param._sharding_spec = parameter._spec  # noqa: SLF001
    fsdp_param.sharded_size = local.size()
    fsdp_param.contiguous_sharded_stride = local.stride()
    fsdp_param.padded_sharded_param_size = padded.size()
    fsdp_param._sharded_param_data = padded.view(-1)  # noqa: SLF001
    fsdp_param.all_gather_outputs = []
    fsdp_param.unsharded_accumulated_grad = None
    if hasattr(fsdp_param, "_unsharded_param"):
        del fsdp_param._unsharded_param  # noqa: SLF001


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of it is in this process, with its storage and without its history."""
    return tensor._local_tensor.detach() if isinstance(tensor, DTensor) else tensor  # noqa: SLF001
