"""A state filled in place from a complete step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everstep.errors import CheckpointMismatch, CheckpointUnreadable

from .generators import blob_name
from .snapshot import PROGRAM, REST, Held
from .tiers import Tiers


@dataclass(frozen=True)
class Origin:
    """What a state was loaded from. ``source`` is "memory" (this node's or a peer's) or "store"."""

    step: int
    save: str
    source: str


@dataclass(frozen=True)
class Loaded:
    """``counts`` are bytes by source: "memory", "peer", "store". ``cursor`` is what was saved beside the state.

    ``generators`` is the blob that the rank asked for had saved of its own, None if there is none.
    """

    origin: Origin
    world_size: int
    cursor: dict[str, Any]
    counts: dict[str, int]
    generators: bytes | None = None

    @property
    def nbytes(self) -> int:
        return sum(self.counts.values())

    @property
    def told(self) -> str:
        return ", ".join(f"{source}: {count} bytes" for source, count in self.counts.items() if count)


def load(tiers: Tiers, state: Held, step: int, save: str, *, generators_of: int = -1) -> Loaded:
    """Fills model and optimizer in place, whatever the world size that saved them was, and takes the rest over.

    ``generators_of`` is the rank whose generators are wanted as well.

    Raises:
        CheckpointUnreadable: the step has gone, or no copy of a part of it is good. The state is then that of no step.
        CheckpointMismatch: the step was not saved from an ``everstep.State``.
        StateMismatch: it was saved from one of another structure.
    """
    found = tiers.find(step)
    if found is None or found.save != save:
        message = f"step {step} can no longer be read: it is complete in no tier any more"
        raise CheckpointUnreadable(message)
    with tiers.read(found) as reader:
        if reader.metadata().program.get("kind") != PROGRAM["kind"]:
            message = (
                f"step {step} of {tiers.namespace} was not saved from an everstep.State: load it with dcp.load and TieredReader"
            )
            raise CheckpointMismatch(message)
        _, cursor = state.unpack_rest(reader.blob(REST))
        reader.fill_tensors(dict(state.items()))
        has_own = blob_name(generators_of) in reader.metadata().blobs
        own = reader.blob(blob_name(generators_of)) if has_own else None
        source = "store" if reader.counts["store"] else "memory"
        return Loaded(Origin(step, save, source), found.world_size, cursor, dict(reader.counts), own)
