"""What a training process does with the hand-over, in a few lines: for tests of a tier that need no library."""

from __future__ import annotations

import fcntl
import mmap
import os

from everstep.shards import STAMP_BYTES

KIB = 1024


def write_shard(ask, index, step, content, *, kind="data", save=None, is_durable=False):
    """Fills a segment and has it sealed; the seal as the tier answers it, or the answer that refuses."""
    save = f"s{step}" if save is None else save
    opened = ask("open", index=index, step=step, nbytes=len(content), save=save, kind=kind, is_durable=is_durable)
    if "refused" in opened:
        return opened
    (descriptor,) = opened["descriptors"]
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with mmap.mmap(descriptor, STAMP_BYTES + opened["capacity"]) as mapped:
        mapped[STAMP_BYTES : STAMP_BYTES + len(content)] = content
    answer = ask("seal", segment=opened["segment"], nbytes=len(content))
    os.close(descriptor)
    return answer


def save_step(node, step, *, content=b"shard", namespace="ns", save=None, is_durable=False):
    """A step of a world of one rank."""
    with node.talk(namespace) as ask:
        answers = [
            write_shard(ask, 0, step, content, save=save, is_durable=is_durable),
            write_shard(ask, 1, step, b'{"metadata": true}', kind="metadata", save=save, is_durable=is_durable),
        ]
    assert all("seal" in answer for answer in answers), answers


def leased(ask, index, step, save=None, *, is_missing_ok=False):
    """The bytes of a shard, through a lease; None if it may be missing, and is."""
    answer = ask("lease", index=index, step=step, save=f"s{step}" if save is None else save)
    if is_missing_ok and "missing" in answer:
        return None
    assert "seal" in answer, answer
    (descriptor,) = answer["descriptors"]
    return os.pread(descriptor, answer["seal"]["size"], STAMP_BYTES)
