"""Averaging the gradients of a model that is not wrapped: in flat buckets, before the vote.

Every rank must reduce equally many numbers (gloo sums wrong sizes without an error), so a parameter without a gradient counts as zeros,
and a presence mask tells whether any rank had one; if none had, the gradient stays None everywhere.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

_BUCKET_BYTES = 25 << 20


def average_gradients(parameters: list[torch.nn.Parameter], world_size: int) -> None:
    """Collectives, in order: one all-reduce of the mask, then one per bucket; the same in every rank."""
    if not parameters:
        return
    mask = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    dist.all_reduce(mask)
    present = [parameter for parameter, count in zip(parameters, mask.tolist(), strict=True) if count > 0]
    for bucket in _buckets(present):
        _average(bucket, world_size)


def _average(bucket: list[torch.nn.Parameter], world_size: int) -> None:
    flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in bucket])
    dist.all_reduce(flat)
    flat /= world_size
    offset = 0
    for parameter in bucket:
        part = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
        if parameter.grad is None:
            parameter.grad = part.clone()
        else:
            parameter.grad.copy_(part)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def _buckets(parameters: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    buckets: list[list[torch.nn.Parameter]] = []
    room: dict[tuple[torch.dtype, torch.device], int] = {}
    last: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        if kind not in last or room[kind] < parameter.nbytes:
            last[kind] = []
            buckets.append(last[kind])
            room[kind] = _BUCKET_BYTES
        last[kind].append(parameter)
        room[kind] -= parameter.nbytes
    return buckets
