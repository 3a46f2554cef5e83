"""DLRover's flash checkpoint, to memory: a copy into shared memory on the training thread, and a saver process beside it. No replicas.

The saver is started here as `dlrover-run` would, in an interpreter of its own: forked off a process with threads, as it is otherwise, it was seen
not to answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
from same_bytes import Ranks

SAVER = "from dlrover.trainer.torch.flash_checkpoint.engine import start_async_save; start_async_save()"


def main() -> None:
    ranks = Ranks()
    os.environ["ROLE_NAME"] = "dlrover-trainer"  # a saver is there
    saver = subprocess.Popen([sys.executable, "-c", SAVER]) if os.environ["LOCAL_RANK"] == "0" else None
    folder = tempfile.mkdtemp(dir=Path.cwd())
    checkpointer = DdpCheckpointer(folder, local_shard_num=2, global_shard_num=2)
    state = {str(number): one for number, one in enumerate(ranks.tensors)}
    for step in range(1, 1 + ranks.rounds):
        ranks.memcpy()
        ranks.stall(
            "visible stall",
            lambda step=step: checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY),
            lambda: None,
        )
        ranks.timed("load, views of shared memory", checkpointer.load_checkpoint)

        def copied() -> None:
            loaded = checkpointer.load_checkpoint()
            for name, one in state.items():
                one.copy_(loaded[name])

        ranks.timed("load, copied", copied)
    assert torch.equal(ranks.tensors[3][:4], torch.arange(4, dtype=torch.float32) + 3)
    ranks.write()
    if saver is not None:
        saver.kill()  # it would outlive everybody
        saver.wait()
    os._exit(0)  # its threads keep the interpreter from ending


main()
