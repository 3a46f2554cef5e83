"""Which node a token belongs to, remembered for a few seconds: a thousand beats a second must not be a thousand queries.

Only beats are believed on this memory. What is remembered of a node that has gone since does no harm: its beats change nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from models.ids import NodeId, digest

REMEMBERED_S = 10.0
_MOST = 50_000


class Tokens:
    """``clock`` is monotonic, in seconds. Digests are kept, never tokens."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[NodeId, float]] = {}

    def find(self, token: str) -> NodeId | None:
        known = self._known.get(digest(token))
        return known[0] if known is not None and self._clock() < known[1] else None

    def remember(self, token: str, node_id: NodeId) -> None:
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[digest(token)] = (node_id, self._clock() + REMEMBERED_S)
