"""The division of a global batch. Pure: the same (batch, world) always gives the same shares, and the shares tile the batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Samples ``start`` to ``start + size`` of the global batch are this rank's.

    ``accumulation`` is what the mean loss of the share must be divided by, so that the mean of the ranks' gradients is the mean over
    the global batch: ``global_batch / (size * world_size)``, 1.0 when the batch divides evenly.
    """

    start: int
    size: int
    accumulation: float


def share_of(global_batch: int, rank: int, world_size: int) -> Share:
    """The first ``global_batch % world_size`` ranks take one sample more.

    Raises:
        ValueError: there are more ranks than samples, so that a rank would have no gradient to give.
    """
    if global_batch < world_size:
        message = f"global_batch is {global_batch}, fewer samples than the {world_size} ranks"
        raise ValueError(message)
    if not 0 <= rank < world_size:
        message = f"rank {rank} is not in a world of {world_size}"
        raise ValueError(message)
    base, extra = divmod(global_batch, world_size)
    size = base + (rank < extra)
    start = rank * base + min(rank, extra)
    return Share(start, size, global_batch / (size * world_size))
