"""What of a node's shards is to be made durable, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from everstep.shards import Seal, ShardKind
from everstep.tiers import NamespacePlan


class Save(NamedTuple):
    """One save of one step."""

    namespace: str
    step: int
    save: str


@dataclass(frozen=True)
class Backlog:
    """For the tier's reports and metrics. ``nbytes`` wait, the oldest since ``waiting_since``; ``given_up`` counts steps that will never be durable."""

    nbytes: int = 0
    waiting_since: float | None = None
    outage: str | None = None
    given_up: int = 0
    note: str | None = None


@dataclass
class Pending:
    """What this node knows of a save on its way to the object store.

    ``written_at`` is the youngest seal's. ``put`` is what this node has seen to, by index. ``others`` are seals seen in the store. ``is_free``: all ranks but 0 have put theirs, so the folder
    of rank 0 may appear. ``inherited`` are stamps of shards whose writers are gone.
    """

    written_at: float
    since: float
    next_at: float
    moved_at: float
    put: dict[int, Seal] = field(default_factory=dict)
    others: dict[int, Seal] = field(default_factory=dict)
    inherited: set[str] = field(default_factory=set)
    is_free: bool = False
    looks: int = 0

    def look_again(self, now: float, *, first_s: float, most_s: float) -> None:
        self.next_at = now + min(most_s, first_s * 2.0 ** min(self.looks, 20))
        self.looks += 1

    def moved(self, now: float) -> None:
        self.moved_at, self.looks, self.next_at = now, 0, now


def wanted(
    seals: Iterable[Seal], plans: Mapping[str, NamespacePlan], is_discarded: Callable[[Seal], bool]
) -> dict[Save, tuple[Seal, ...]]:
    """The shards held here that belong into the object store, saves in the order in which they go, oldest first.

    Of several saves of a step the youngest: they have one place there.
    """
    saves: dict[Save, list[Seal]] = {}
    for seal in seals:
        if _is_wanted(seal, plans.get(seal.namespace)) and not is_discarded(seal):
            saves.setdefault(Save(seal.namespace, seal.step, seal.save), []).append(seal)
    youngest: dict[tuple[str, int], Save] = {}
    for save, held in sorted(saves.items(), key=lambda item: max(seal.written_at for seal in item[1])):
        youngest[save.namespace, save.step] = save
        held.sort(key=in_order)
    oldest_first = sorted(youngest.values(), key=lambda save: (min(seal.written_at for seal in saves[save]), save))
    return {save: tuple(saves[save]) for save in _steps_in_order(oldest_first)}


def in_order(seal: Seal) -> tuple[bool, bool, int]:
    """Shards of a step in the order in which they are put: what lies in rank 0's folder last, and of that the metadata."""
    return seal.kind is ShardKind.METADATA, seal.index == 0, seal.index


def is_in_rank_0(seal: Seal) -> bool:
    return seal.kind is ShardKind.METADATA or seal.index == 0


def _is_wanted(seal: Seal, plan: NamespacePlan | None) -> bool:
    if plan is not None and seal.step in plan.dropped:
        return False
    return seal.is_durable or (plan is not None and seal.step in plan.drain)


def _steps_in_order(saves: list[Save]) -> list[Save]:
    """Within a namespace by number, whatever was written when; between namespaces by age."""
    steps: dict[str, list[Save]] = {}
    for save in saves:
        steps.setdefault(save.namespace, []).append(save)
    queues = {namespace: iter(sorted(found, key=lambda save: save.step)) for namespace, found in steps.items()}
    return [next(queues[save.namespace]) for save in saves]
