"""Beats are liveness, not state: they wait in memory for a fifth of a second and are written in one statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from models.ids import NodeId
from models.node.beats import Heartbeat
from models.node.liveness import beat_interval

log = logging.getLogger(__name__)

FLUSH_S = 0.2
_SEEN_S = 60.0

Write = Callable[[Sequence[Heartbeat]], Awaitable[None]]


class Beats:
    """The beats that are not yet written, one a node: a newer one replaces the older."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: dict[NodeId, Heartbeat] = {}
        self._population = 0
        self._seen: set[NodeId] = set()
        self._seen_until = 0.0

    def add(self, beat: Heartbeat) -> float:
        """Keeps a beat and returns the seconds until the node's next."""
        self._waiting[beat.node_id] = beat
        self._seen.add(beat.node_id)
        return self.interval_s

    @property
    def interval_s(self) -> float:
        return beat_interval(max(self._population, len(self._seen))).total_seconds()

    async def run(self) -> None:
        """Writes what has gathered, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()
            if clock() > self._seen_until:
                self._population, self._seen, self._seen_until = len(self._seen), set(), clock() + _SEEN_S

    async def flush(self) -> None:
        """One statement for all. What cannot be written goes back, unless something newer has come meanwhile."""
        taken, self._waiting = self._waiting, {}
        if not taken:
            return
        is_written = False
        try:
            await self._write(tuple(taken.values()))
            is_written = True
        except SQLAlchemyError as error:
            log.warning("%d beats could not be written and wait: %s", len(taken), type(error).__name__)
        finally:
            if not is_written:  # also when a shutdown cancels the write, before its last flush
                self._waiting = taken | self._waiting
