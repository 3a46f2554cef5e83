"""Memory of local nodes, which no end of a process gives back: the shards of a node's tier, and the batches that its agent keeps beside them.

Whoever ends a node for good gives it back; what a crash has left is found by name, when no process of that name is alive.
"""

import re
import shutil
import subprocess
from pathlib import Path

from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE

ROOT = Path("/dev/shm/everstep")  # noqa: S108  (memory that the node's processes share, a folder a node)
_INSTANCE = re.compile(r"(i-[0-9a-f]{17})(\.batches)?")


def folder_of(instance_id: str, root: Path = ROOT) -> Path:
    return root / instance_id


def give_back(instance_id: str, root: Path = ROOT) -> None:
    """Of a node whose processes have ended. Nothing there is fine."""
    folder = folder_of(instance_id, root)
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)
    for left in (folder, folder.with_name(f"{instance_id}.batches")):
        shutil.rmtree(left, ignore_errors=True)


def sweep(root: Path = ROOT) -> list[str]:
    """Gives back what dead nodes have left, whosever they were; returns their names."""
    names = [_INSTANCE.fullmatch(folder.name) for folder in root.iterdir()] if root.is_dir() else []
    found = {name[1] for name in names if name}
    if not found:
        return []
    alive = {
        procfs.environment(key.pid).get(NODE_ID_VARIABLE) for key in procfs.find(lambda told: told.get(NODE_ID_VARIABLE) in found)
    }
    left = sorted(found - alive)
    for name in left:
        give_back(name, root)
    return left
