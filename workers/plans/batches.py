"""Which nodes of a group are changed together, and how many. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar


class Candidate(Protocol):
    @property
    def instance_type(self) -> str: ...

    @property
    def is_busy(self) -> bool: ...

    @property
    def created_at(self) -> datetime: ...


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True)
class Batching:
    """At most ``count`` nodes at a time, or ``percentage`` of them, rounded up; all at once if neither is given."""

    count: int | None = None
    percentage: int | None = None

    def size(self, total: int) -> int:
        """At least one, whatever the wish."""
        if self.count is not None:
            return max(1, min(self.count, total))
        if self.percentage is not None:
            return max(1, min(total, math.ceil(total * self.percentage / 100)))
        return max(1, total)


def choose(nodes: Sequence[C], size: int) -> list[C]:
    """Of each type its share of the batch, by largest remainder; of a type those without work first, of these the oldest."""
    of_type: dict[str, list[C]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: (node.is_busy, node.created_at)):
        of_type[node.instance_type].append(node)
    size = min(size, len(nodes))
    exact = {kind: size * len(members) / len(nodes) for kind, members in of_type.items()}
    share = {kind: int(part) for kind, part in exact.items()}
    most_wanting = sorted(of_type, key=lambda kind: (share[kind] - exact[kind], kind))
    for kind in most_wanting[: size - sum(share.values())]:
        share[kind] += 1
    return [node for kind, members in of_type.items() for node in members[: share[kind]]]
