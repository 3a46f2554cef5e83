"""A training script of somebody who uses AWS's tiered checkpointing with FSDP, and has never heard of Everstep.

``python tiered_checkpointing.py save|load NAMESPACE [S3_BASE]``, once a rank, with torchrun's variables. Prints a JSON line for each step that was
saved or loaded: its number, and what this rank's part of the state hashes to.
"""

import hashlib
import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from amzn_sagemaker_checkpointing.checkpointing.filesystem.filesystem import (
    SageMakerTieredStorageReader,
    SageMakerTieredStorageWriter,
)
from amzn_sagemaker_checkpointing.config.sagemaker_checkpoint_config import SageMakerCheckpointConfig
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = (10, 20, 30)
"""The first is saved and waited for; the second goes on in the background; the third goes to S3 as well, if there is one."""


class Training:
    def __init__(self, world_size: int) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (world_size,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step = 0

    def train(self, until: int) -> None:
        while self.step < until:
            self.step += 1
            torch.manual_seed(self.step)
            self.model(torch.randn(8, 256)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(self.step)}

    def take(self, state: dict) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = int(state["step"])

    def tell(self) -> None:
        """The digest of what this rank holds of the model and of the optimizer."""
        hashed = hashlib.sha256()
        state = self.state()
        moments = [part[name] for _, part in sorted(state["optimizer"]["state"].items()) for name in ("exp_avg", "exp_avg_sq")]
        for tensor in (*state["model"].values(), *moments):
            hashed.update(tensor.to_local().contiguous().numpy().tobytes())
        print(json.dumps({"rank": dist.get_rank(), "step": self.step, "digest": hashed.hexdigest()}), flush=True)


def main(what: str, namespace: str, s3_base: str = "") -> None:
    dist.init_process_group("gloo")
    config = SageMakerCheckpointConfig(namespace=namespace, world_size=dist.get_world_size(), s3_tier_base_path=s3_base)
    training = Training(config.world_size)
    if what == "save":
        save(training, config)
    else:
        training.train(1)  # the optimizer has its moments
        state = training.state()
        dcp.load(state, storage_reader=SageMakerTieredStorageReader(config))
        training.take(state)
        training.tell()
    dist.destroy_process_group()


def save(training: Training, config: SageMakerCheckpointConfig) -> None:
    background = dist.new_group(backend="gloo")  # a save that goes on must not use the group of the training
    waiting = None
    for step in STEPS:
        training.train(step)
        config.save_to_s3 = bool(config.s3_tier_base_path) and step == STEPS[-1]
        if waiting is not None:
            waiting.result()
            waiting = None
        writer = SageMakerTieredStorageWriter(config, step=step)
        if step == STEPS[1]:
            waiting = dcp.async_save(training.state(), storage_writer=writer, process_group=background)
        else:
            dcp.save(training.state(), storage_writer=writer)
        training.tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
