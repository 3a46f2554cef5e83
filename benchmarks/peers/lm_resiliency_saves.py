"""lm-resiliency (GEMINI): a copy to CPU buffers, and a replica at the other rank. On CPU the copy is made on the training thread."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lm_resiliency.checkpointing.config import InMemoryCkptConfig
from lm_resiliency.checkpointing.manager import InMemoryCheckpointManager
from same_bytes import Ranks


def main() -> None:
    ranks = Ranks()
    folder = tempfile.mkdtemp(dir=Path.cwd())
    config = InMemoryCkptConfig(disk_flush_interval=0, disk_folder=folder, run_id="bench", pin_memory=False, replication_jump=1)
    manager = InMemoryCheckpointManager(config)
    for step in range(1, 1 + ranks.rounds):
        ranks.memcpy()
        ranks.stall("visible stall", lambda step=step: manager.save_tensors(ranks.tensors, step), manager.maybe_wait)
        ranks.timed("rest of the replica", lambda: manager.finalize_replication(timeout_s=60.0))

        def load() -> None:
            loaded = manager.load_tensors()
            assert loaded is not None, "nothing is loaded"
            for source, target in zip(loaded[0], ranks.tensors, strict=True):
                target.copy_(source)

        ranks.timed("load, copied", load)
    ranks.write()
    os._exit(0)


main()
