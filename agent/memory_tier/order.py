"""Steps of a namespace are committed in order, unless one of them does not come."""

from __future__ import annotations

from .backlog import Pending, Save

ORDER_S = 30.0
"""How long a step that other ranks have not put yet keeps those after it from being committed before it, from when one of its namespace last was."""


class Order:
    """As long as others put what is older they are not late with what comes after it. Times are in Unix seconds."""

    def __init__(self) -> None:
        self._committed_at: dict[str, float] = {}

    def committed(self, namespace: str, now: float) -> None:
        self._committed_at[namespace] = now

    def is_kept(self, save: Save, pending: Pending, now: float, newest: tuple[int, float] | None) -> bool:
        """Whether those after it wait for it. ``newest`` is the newest durable step: one that has been passed already keeps nobody."""
        is_passed = newest is not None and newest[0] > save.step
        return not is_passed and now < max(pending.moved_at, self._committed_at.get(save.namespace, 0.0)) + ORDER_S
