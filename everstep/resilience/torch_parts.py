"""The private parts of torch on which the runtime relies, checked once, at import.

A missing part must stop the process before training starts: found only during a recovery, it would cost the job.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from everstep.errors import UnsupportedTorch

TESTED_VERSION = "2.13.0"

_REQUIRED: tuple[tuple[object, str, str], ...] = (
    (DistributedDataParallel, "_update_process_group", "torch.nn.parallel.DistributedDataParallel"),
    (dist.Reducer, "_reset_state", "torch.distributed.Reducer"),
    (dist.Reducer, "_update_process_group", "torch.distributed.Reducer"),
    (dist.ProcessGroup, "_register_backend", "torch.distributed.ProcessGroup"),
    (dist.ProcessGroup, "_set_default_backend", "torch.distributed.ProcessGroup"),
    (dist.ProcessGroupGloo, "_Options", "torch.distributed.ProcessGroupGloo"),
    (dist.ProcessGroupGloo, "_set_default_timeout", "torch.distributed.ProcessGroupGloo"),
    (dist.ProcessGroupGloo, "create_device", "torch.distributed.ProcessGroupGloo"),
    (dist.Backend, "register_backend", "torch.distributed.Backend"),
    (distributed_c10d, "_register_pg_in_world", "torch.distributed.distributed_c10d"),
    (DeviceMesh, "_hash_key", "torch.distributed.device_mesh.DeviceMesh"),
    (DTensor, "_local_tensor", "torch.distributed.tensor.DTensor"),
    (DTensor, "_spec", "torch.distributed.tensor.DTensor"),
    (FSDPModule, "_get_fsdp_state", "torch.distributed.fsdp.FSDPModule"),
    (FSDPModule, "reset_iter_state", "torch.distributed.fsdp.FSDPModule"),
    (FSDPModule, "set_all_reduce_hook", "torch.distributed.fsdp.FSDPModule"),
    (FSDPParam, "reset_sharded_param", "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam"),
    (FSDPParam, "_sharded_local_tensor", "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam"),
    (FSDPParamGroup, "_to_sharded", "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup"),
)
_NCCL = getattr(dist, "ProcessGroupNCCL", None)
_REQUIRED_OF_NCCL = ("Options", "abort", "get_error")


def check() -> None:
    """Raises UnsupportedTorch naming torch's version and the first attribute that is missing."""
    of_nccl = ((_NCCL, attribute, "torch.distributed.ProcessGroupNCCL") for attribute in _REQUIRED_OF_NCCL if _NCCL)
    for owner, attribute, name in (*_REQUIRED, *of_nccl):
        if not hasattr(owner, attribute):
            message = (
                f"torch {torch.__version__} has no {name}.{attribute}, which in-place recovery needs; "
                f"Everstep is tested with torch {TESTED_VERSION}"
            )
            raise UnsupportedTorch(message)
