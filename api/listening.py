"""Hears notifications of the database, on one connection a process and channel, for as long as it is asked to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import psycopg
from sqlalchemy.engine import make_url

log = logging.getLogger(__name__)

_RECONNECT_S = 0.5


async def listen(database_url: str, channel: str, heard: Callable[[str | None], None], *, name: str) -> None:
    """Calls ``heard`` with each payload, until cancelled; with None after each connection: something may have been missed."""
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    while True:
        try:
            async with await _connect(address, name) as connection:
                await connection.execute(f"LISTEN {channel}")
                heard(None)
                async for notification in connection.notifies():
                    heard(notification.payload)
        except psycopg.Error as error:
            log.warning("not listening for %s, reconnecting: %s", name, type(error).__name__)
        await asyncio.sleep(_RECONNECT_S)


async def _connect(address: str, name: str) -> psycopg.AsyncConnection:
    """A connection whose server has vanished without a word is given up after nine seconds."""
    return await psycopg.AsyncConnection.connect(
        address,
        autocommit=True,
        connect_timeout=5,
        application_name=f"everstep {name}",
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=2,
    )
