"""The bytes of a tensor, without a copy and without numpy, which a training environment may lack."""

from __future__ import annotations

import ctypes

import torch


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor. Valid only as long as the caller keeps the tensor alive."""
    if tensor.nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
