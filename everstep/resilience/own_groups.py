"""Groups that keep their identity: what user code, a device mesh and FSDP hold on to, while the group below is remade in each generation.

1. A ``StableGroup`` forwards each collective to the guarded group of the current generation, and has that one's rank and size. What a
   collective returns belongs to the guarded group, so that a wait of an older generation never touches a newer one.
2. Names are ours, not torch's counter: DTensor and DeviceMesh look groups up by name at every use, and find the new one.
3. Which groups there are is known before a generation is joined, so all of them are built at once, in threads that can be left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from everstep.errors import EverstepError, GroupRetired

from .construction import Wanted
from .groups import COLLECTIVES, GuardedGroup
from .python_group import BACKEND, PythonGroup

Chooser = Callable[[int, int], Sequence[int]]
"""(rank, world size) -> the ranks of the group that this rank is in, in order; the same from each of them. Empty: in none."""
Ranks = Sequence[int] | Chooser | None


class StableGroup(PythonGroup):
    """The same object for ever. ``rank()`` and ``size()`` are those of now; -1 and 0 in a rank that is not in it."""

    def __init__(self, name: str) -> None:
        super().__init__(0, 1, name)
        self._now: GuardedGroup | None = None

    def fill(self, group: GuardedGroup | None) -> None:
        self._now = group

    def rank(self) -> int:
        return self._now.rank() if self._now is not None else -1

    def size(self) -> int:
        return self._now.size() if self._now is not None else 0

    def _get_backend(self, device: torch.device) -> Any:
        return self.current()._get_backend(device)  # noqa: SLF001

    def abort(self) -> None:
        if self._now is not None:
            self._now.abort()

    def shutdown(self) -> None:
        """Lets the group of this generation go; the object waits for the next one."""
        if self._now is not None:
            self._now.shutdown()
            self._now = None

    def current(self) -> GuardedGroup:
        if self._now is None:
            message = f"this rank is not in the group {self._name!r}, or the group waits for the next generation"
            raise GroupRetired(message)
        return self._now


def _forward(name: str) -> Callable[..., dist.Work]:
    def collective(self: StableGroup, *args: Any, **options: Any) -> dist.Work:
        work: dist.Work = getattr(self.current(), name)(*args, **options)
        return work

    collective.__name__ = name
    return collective


for _name in (*COLLECTIVES, "_reduce_scatter_base", "reduce_scatter_single"):
    if hasattr(dist.ProcessGroup, _name):
        setattr(StableGroup, _name, _forward(_name))


@dataclass(frozen=True)
class _Wish:
    group: StableGroup
    ranks: Ranks

    def members(self, rank: int, world_size: int) -> tuple[int, ...]:
        if self.ranks is None or world_size == 1:
            return tuple(range(world_size))
        chosen = tuple(self.ranks(rank, world_size) if callable(self.ranks) else self.ranks)
        name = self.group.group_name
        if any(not 0 <= one < world_size for one in chosen) or len(set(chosen)) != len(chosen):
            message = f"the group {name!r} asks for ranks {list(chosen)} in a world of {world_size}; give a function of (rank, world size)"
            raise EverstepError(message)
        if callable(self.ranks) and chosen and rank not in chosen:
            message = f"the group {name!r} puts rank {rank} into {list(chosen)}, where it is not"
            raise EverstepError(message)
        return chosen if rank in chosen else ()


class OwnGroups:
    """All stable groups of this process, by name."""

    def __init__(self) -> None:
        self._wishes: dict[str, _Wish] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._wishes))

    def declare(self, name: str, ranks: Ranks) -> StableGroup:
        """The group of that name. Asked for again, it is the same object, and the ranks of the first call count."""
        if name not in self._wishes:
            self._wishes[name] = _Wish(StableGroup(name), ranks)
        return self._wishes[name].group

    def wanted(self, new_store: Callable[[], dist.Store], rank: int, world_size: int, only: set[str]) -> dict[str, Wanted]:
        """What is to be built in a generation: each group on a store and a prefix of its own."""
        found = {}
        for name, wish in self._wishes.items():
            members = wish.members(rank, world_size) if name in only else ()
            if members:
                own = dist.PrefixStore(f"{name}/{members[0]}", new_store())
                found[name] = Wanted(own, members.index(rank), len(members))
        return found

    def install(self, built: dict[str, GuardedGroup], store: dist.Store, rank: int, world_size: int, only: set[str]) -> None:
        """Fills the groups, and has torch know them by name. Bookkeeping only: nothing here waits or communicates."""
        for name, wish in self._wishes.items():
            if name not in only:
                continue
            wish.group.fill(built.get(name))
            if name in built:
                ranks = {member: number for number, member in enumerate(wish.members(rank, world_size))}
                known_as = distributed_c10d.GroupName(name)
                distributed_c10d._register_pg_in_world(wish.group, BACKEND, store, known_as, BACKEND, ranks)  # noqa: SLF001, checked at import
