"""Tensors as bytes, bytes as tensors, and the private parts of torch that mapped loading relies on."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from everstep.errors import CheckpointMismatch


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Raises CheckpointMismatch if this version of torch does not know it."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        message = f"the checkpoint holds tensors of type {name!r}, which torch {torch.__version__} does not know"
        raise CheckpointMismatch(message)
    return found


def local_of(tensor: Tensor) -> Tensor:
    """The part of it that this process holds, without its history; ``to_local`` takes ten times as long, for a gradient that nobody wants."""
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach()  # noqa: SLF001


def shards_of(tensor: Tensor) -> int:
    """Into how many pieces of rows a tensor is divided over processes; 1 for one that is whole. Raises CheckpointMismatch for other divisions."""
    if not isinstance(tensor, DTensor):
        return 1
    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.ndim != 1 or not placements[0].is_shard(0):
        message = f"a tensor that is divided as {placements} cannot be saved from an everstep.State; only rows on a mesh of one dimension can"
        raise CheckpointMismatch(message)
    return mesh.size()


def own_rows(tensor: Tensor) -> tuple[int, int]:
    """First row and end of what this process has of a tensor, whole or divided as ``shards_of`` says."""
    length = tensor.shape[0] if tensor.dim() else 1
    if not isinstance(tensor, DTensor):
        return 0, length
    coordinate = tensor.device_mesh.get_coordinate() or (0,)
    return rows_of(length, shards_of(tensor), coordinate[0])


def rows_of(length: int, shards: int, index: int) -> tuple[int, int]:
    """Of ``length`` rows those of one piece: pieces have ``ceil(length / shards)`` rows, the last ones fewer or none."""
    piece = -(-length // shards)
    return min(index * piece, length), min((index + 1) * piece, length)


def inside(tensor: Tensor) -> Tensor:
    """As ``local_of``, and of a whole tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001


def size_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """In bytes."""
    return prod(shape) * dtype.itemsize


def over(body: memoryview, start: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor that is these bytes; it keeps the memory below them alive. ``start`` is a multiple of the size of an element."""
    nbytes = size_of(shape, dtype)
    if not nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(body, dtype=torch.uint8, count=nbytes, offset=start).view(dtype).view(tuple(shape))


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable; they keep it alive."""
    nbytes = tensor.numel() * tensor.element_size()
    if not nbytes:
        return memoryview(bytearray())  # empty, and yet writable as all others
    memory = (ctypes.c_char * nbytes).from_address(tensor.data_ptr())
    memory.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def new_memory(nbytes: int) -> memoryview:
    """A writable buffer that is not zeroed first."""
    return memory_of(torch.empty(nbytes, dtype=torch.uint8))


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous tensor, in elements."""
    strides, behind = [], 1
    for length in reversed(shape):
        strides.append(behind)
        behind *= length
    return tuple(reversed(strides))


def span_of(sizes: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """From the first to behind the last element of a region of a contiguous tensor of shape ``sizes``; (0, 0) if it has none."""
    if lengths == sizes:
        return 0, prod(sizes)
    if not prod(lengths):
        return 0, 0
    strides = strides_of(sizes)
    start = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    return start, start + sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True)) + 1


def adopt(target: Any, view: Tensor) -> bool:
    """Makes ``target`` show ``view`` instead of its own memory. False if it cannot: another shape, type or device."""
    mine = target._local_tensor if isinstance(target, DTensor) else target  # noqa: SLF001  (to_local gives a fresh alias, which nobody sees)
    if mine.shape != view.shape or mine.dtype != view.dtype or mine.device != view.device:
        return False
    mine.data = view
    return True


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's collectives take tensors from: a group of NCCL alone knows no others than the GPU's."""
    kinds = (group or dist.distributed_c10d._get_default_group())._device_types  # noqa: SLF001  (DCP asks the same way)
    return torch.device("cpu") if torch.device("cpu") in kinds else torch.device("cuda", torch.cuda.current_device())
