"""Answers that go on for as long as their reader listens: one conversation for the agents' door and for the stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive


async def converse(receive: Receive, talking: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
    """Talks until that is over or the reader has gone, and listens for the latter at the same time: an idle stream would never notice it by writing.

    ``ended`` is called at once, before what is still being said has been taken back: a node's stream that closes is news.
    """
    tasks = (asyncio.create_task(_until_disconnected(receive)), asyncio.create_task(talking))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except OSError:
        pass  # the reader went while we wrote
    finally:
        ended()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def part(text: bytes) -> dict[str, object]:
    """An ASGI message: more of the body, and not the last of it."""
    return {"type": "http.response.body", "body": text, "more_body": True}


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
