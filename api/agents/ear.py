"""Hears of new directives: one LISTEN connection a process, and a slow look for what a lost notification would have said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import psycopg
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from api.agents.streams import Streams
from models.ids import NodeId
from models.notify import DIRECTIVE

log = logging.getLogger(__name__)

POLL_S = 3.0
_RECONNECT_S = 0.5


async def listen(database_url: str, streams: Streams) -> None:
    """Wakes a node's stream when it has news, until cancelled. Everybody is woken after a reconnection: something may have been missed."""
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    while True:
        try:
            async with await _connect(address) as connection:
                await connection.execute(f"LISTEN {DIRECTIVE}")
                streams.wake()
                async for notification in connection.notifies():
                    streams.wake([notification.payload])
        except psycopg.Error as error:
            log.warning("not listening for directives, reconnecting: %s", type(error).__name__)
        await asyncio.sleep(_RECONNECT_S)


async def _connect(address: str) -> psycopg.AsyncConnection:
    """A connection whose server has vanished without a word is given up after nine seconds; meanwhile the poll hears for it."""
    return await psycopg.AsyncConnection.connect(
        address,
        autocommit=True,
        connect_timeout=5,
        application_name="everstep directives",
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=2,
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
