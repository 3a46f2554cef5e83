"""The key ``checkpoint`` of a job file: how often a job saves, how many copies there are, and what is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, StringConstraints

from api.own.wire import Asked
from models.checkpoint.policy import KEPT_IN_MEMORY, REPLICAS
from models.errors import Invalid

AUTO: Final = "auto"
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAMESPACE: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$"

Steps = Annotated[int, Field(ge=1, le=2**40)]


class CheckpointKeep(Asked):
    """What is kept: ``memory`` steps in memory, the rest is about the object store.

    There the ``last`` newest steps and multiples of ``every`` stay, unless they are older than ``max_age`` seconds, as far as all take no more than
    ``max_bytes``. The newest complete step and pinned ones always stay.
    """

    model_config = ConfigDict(strict=True)

    memory: Annotated[int, Field(ge=1, le=1000)] = KEPT_IN_MEMORY
    last: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    every: Steps | None = None
    max_age: Annotated[float, Field(gt=0, le=1e10)] | None = None
    max_bytes: Annotated[int, Field(ge=1, lt=2**63)] | None = None


class Checkpointing(Asked):
    """How often a job saves, and where. In a file ``auto`` stands for all defaults, and ``keep.max_age`` may be written as ``7d``.

    ``memory_every`` and ``durable_every`` are steps between saves to memory and to the object store; left out, the script says, and then measured costs
    and the observed fault rate. ``replicas`` counts all copies of a shard in memory. A job goes on from what its ``namespace`` holds; left out, it has
    one of its own.
    """

    model_config = ConfigDict(strict=True)

    memory_every: Steps | None = None
    durable_every: Steps | None = None
    replicas: Annotated[int, Field(ge=1, le=8)] = REPLICAS
    keep: CheckpointKeep = Field(default_factory=CheckpointKeep)
    namespace: Annotated[str, StringConstraints(pattern=_NAMESPACE)] | None = None


def block(written: Any) -> Any:
    """What the file says, as ``Checkpointing`` takes it; the shapes of its values are checked there.

    Raises:
        Invalid: it is neither ``auto`` nor a block, or ``keep.max_age`` is no duration.
    """
    if written is None or written == AUTO:
        return {}
    if not isinstance(written, Mapping):
        raise Invalid(message=f"checkpoint: it is '{AUTO}' or a block of keys, not {written!r}.")
    return dict(written)


def seconds(written: Any, *, of: str = "checkpoint.keep.max_age") -> Any:
    """Seconds, of a number or of text such as ``90m``; ``of`` is the key. Raises Invalid."""
    if not isinstance(written, str):
        return written
    found = _DURATION.fullmatch(written.strip())
    if found is None:
        raise Invalid(message=f"{of}: '{written}' is no duration; write seconds, or a number with s, m, h or d, as 7d.")
    return float(found[1]) * _SECONDS[found[2]]
