"""Hears of new directives: one LISTEN connection a process, and a slow look for what a lost notification would have said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from api import listening
from api.agents.streams import Streams
from models.ids import NodeId
from models.notify import DIRECTIVE

log = logging.getLogger(__name__)

POLL_S = 3.0


async def listen(database_url: str, streams: Streams) -> None:
    """Wakes a node's stream when it has news, until cancelled. Everybody is woken after a reconnection: something may have been missed.

    While a connection is dead and does not know it yet, the poll hears for it.
    """
    await listening.listen(
        database_url, DIRECTIVE, lambda node_id: streams.wake(None if node_id is None else [node_id]), name="directives"
    )


async def poll(streams: Streams, undelivered: Callable[[Sequence[NodeId]], Awaitable[list[NodeId]]]) -> None:
    """Wakes the streams of nodes with directives that nobody delivered, until cancelled."""
    while True:
        await asyncio.sleep(POLL_S)
        if streams.node_ids:
            try:
                streams.wake(await undelivered(streams.node_ids))
            except SQLAlchemyError as error:
                log.warning("cannot look for undelivered directives: %s", type(error).__name__)
