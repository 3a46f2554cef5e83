"""A state machine is one table: state → event → next state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from models.errors import IllegalMove

S = TypeVar("S", bound=StrEnum)


class Machine(Generic[S]):
    """The law of one noun. ``table`` maps every state to its legal successors and the event that leads to each.

    Raises:
        ValueError: at construction, if a state is missing from the table or cannot be reached from ``initial``.
    """

    def __init__(self, noun: str, *, initial: S, table: Mapping[S, Mapping[S, str]]) -> None:
        self.noun = noun
        self.initial = initial
        self._table = {state: dict(edges) for state, edges in table.items()}
        missing = set(type(initial)) - set(self._table)
        if missing:
            message = f"{noun}: no row for {sorted(missing)}"
            raise ValueError(message)
        lost = set(self._table) - self.reachable(initial)
        if lost:
            message = f"{noun}: {sorted(lost)} cannot be reached from {initial}"
            raise ValueError(message)

    @property
    def states(self) -> tuple[S, ...]:
        return tuple(self._table)

    def next(self, state: S) -> frozenset[S]:
        return frozenset(self._table[state])

    def event(self, old: S, new: S, *, name: str = "") -> str:
        """The event that leads from old to new; ``name`` is for the error.

        Raises:
            IllegalMove: there is no such edge.
        """
        self.check(old, new, name=name)
        return self._table[old][new]

    def check(self, old: S, new: S, *, name: str = "") -> None:
        if new not in self._table[old]:
            raise IllegalMove(kind=self.noun, name=name, old=old, new=new)

    def is_terminal(self, state: S) -> bool:
        return not self._table[state]

    @property
    def live(self) -> tuple[S, ...]:
        """The states that something can still follow."""
        return tuple(state for state in self._table if not self.is_terminal(state))

    def reachable(self, state: S) -> frozenset[S]:
        seen = {state}
        frontier = [state]
        while frontier:
            for successor in self._table.get(frontier.pop(), {}):
                if successor not in seen:
                    seen.add(successor)
                    frontier.append(successor)
        return frozenset(seen)

    def mermaid(self) -> str:
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        for old, edges in self._table.items():
            lines += [f"    {old} --> {new}: {event}" for new, event in edges.items()]
            if not edges:
                lines.append(f"    {old} --> [*]")
        return "\n".join(lines)
