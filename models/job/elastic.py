"""How many nodes an elastic job may have, as its accepted file says. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

SCALING_S = 60.0
GRACEFUL_S = 600.0
FAULTY_S = 30.0
SNOOZE_S = 0.0
_MOST_TOLD = 12


AUTO: Final = "auto"
"""What an accepted job file says of its spares where their number is left to the planner."""


@dataclass(frozen=True)
class ElasticPolicy:
    """``sizes`` are counts of nodes, ascending; no other ever trains.

    ``scaling`` is how long nodes are free before the job grows onto them, ``graceful`` how long a member has to follow a change of size, ``faulty`` how
    long lost nodes are waited for before the job shrinks, ``snooze`` how long it does not grow after it could not.
    """

    sizes: Sequence[int]
    scaling: timedelta = timedelta(seconds=SCALING_S)
    graceful: timedelta = timedelta(seconds=GRACEFUL_S)
    faulty: timedelta = timedelta(seconds=FAULTY_S)
    snooze: timedelta = timedelta(seconds=SNOOZE_S)

    @property
    def least(self) -> int:
        return self.sizes[0]

    def fitting(self, nodes: int) -> int | None:
        """The largest size for so many nodes; None if there is none."""
        found = bisect_right(self.sizes, nodes)
        return self.sizes[found - 1] if found else None


def sizes_of(least: int, most: int, step: int | None, sizes: Sequence[int] | None) -> Sequence[int]:
    """Every allowed size, ascending: the ones that are named, or ``least`` and each ``step`` above it, up to ``most``."""
    return tuple(sorted(set(sizes))) if sizes else range(least, most + 1, step or 1)


def elastic_of(spec: Mapping[str, Any]) -> ElasticPolicy | None:
    """Of an accepted job file, whose block ``elastic`` has its defaults filled in. None: the job has one size."""
    block = spec.get("elastic")
    if not isinstance(block, Mapping):
        return None
    return ElasticPolicy(
        sizes_of(block["min"], block["max"], block.get("step"), block.get("sizes")),
        scaling=timedelta(seconds=block.get("scaling_timeout", SCALING_S)),
        graceful=timedelta(seconds=block.get("graceful_timeout", GRACEFUL_S)),
        faulty=timedelta(seconds=block.get("faulty_scale_down_timeout", FAULTY_S)),
        snooze=timedelta(seconds=block.get("snooze", SNOOZE_S)),
    )


def told(sizes: Sequence[int]) -> str:
    """The sizes in words, however many they are."""
    if len(sizes) > _MOST_TOLD and isinstance(sizes, range):
        return f"{sizes[0]}, {sizes[1]}, … {sizes[-1]}"
    return ", ".join(map(str, sizes))
