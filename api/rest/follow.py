"""``GET /v1/events?follow=true``: server-sent events, for as long as the caller listens.

A follower remembers a position and nothing else; every read of the database goes on from there, with the caller's own eyes, so that a slow reader
costs one page of memory and a fast one no connection. Notifications only say when to look.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.auth import Caller
from api.deps import Services
from api.listening import listen
from api.operations import feed
from api.operations.feed import Chapter, FeedWish
from api.operations.work import Work
from api.own.feed import shape
from api.streaming import converse, part
from models.errors import DomainError
from models.feed import FeedFilter, Position
from models.notify import EVENT
from models.session import unit_of_work

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 10.0
"""A comment goes out at least so often: proxies close what is silent, and a follower that is gone is noticed by writing to it."""
MOST: Final = 1000
MOST_OF_ONE: Final = 250
"""Followers with one key: what one of them forgets to close must not keep the others out."""
_THREADS: Final = 2
_RETRY_S: Final = 0.5
_HELD_S: Final = (0.05, 0.5)
"""How soon to look again while an older transaction holds events back: at first, and at most."""


class TooManyFollowers(Exception):
    """This process has as many followers as it takes, of all keys or of this one; try again later."""


@dataclass(frozen=True)
class Question:
    """Who follows what."""

    caller: Caller
    wanted: FeedFilter


@dataclass(eq=False)
class Follower:
    """``news`` is set when something may have happened, ``over`` when we end it."""

    question: Question
    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> None:
        """For news or the end, but no longer."""
        try:
            async with asyncio.timeout(seconds):
                await self.news.wait()
        except TimeoutError:
            pass

    def end(self) -> None:
        self.over.set()
        self.news.set()


Read = Callable[[Question, Position], Awaitable[Chapter]]


class Followers:
    """Those of this process. Those who ask the same from the same position share a read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._reading: dict[tuple[Question, Position], asyncio.Task[Chapter]] = {}
        self._open: set[Follower] = set()
        self._is_shutting_down = False

    def open(self, question: Question, position: Position) -> FollowResponse:
        """Raises TooManyFollowers."""
        if len(self._open) >= MOST:
            raise TooManyFollowers(TooManyFollowers.__doc__)
        if sum(other.question.caller.key_id == question.caller.key_id for other in self._open) >= MOST_OF_ONE:
            message = f"This key has {MOST_OF_ONE} followers already; end one of them."
            raise TooManyFollowers(message)
        follower = Follower(question)
        self._open.add(follower)
        if self._is_shutting_down:
            follower.end()
        return FollowResponse(follower, position, self.read, self._open.discard)

    def wake(self, _payload: str | None = None) -> None:
        for follower in self._open:
            follower.news.set()

    def shut_down(self) -> None:
        """Callable from a signal handler's turn of the loop."""
        self._is_shutting_down = True
        for follower in self._open:
            follower.end()

    async def read(self, question: Question, position: Position) -> Chapter:
        """What has happened since. One follower's end does not end a read that others wait for."""
        key = (question, position)
        if key not in self._reading:
            self._reading[key] = asyncio.ensure_future(self._read(question, position))
            self._reading[key].add_done_callback(lambda _: self._reading.pop(key))
        return await asyncio.shield(self._reading[key])


class FollowResponse(Response):
    """Writes events as they come, and listens for the caller's end at the same time."""

    media_type = "text/event-stream"

    def __init__(self, follower: Follower, position: Position, read: Read, ended: Callable[[Follower], None]) -> None:
        super().__init__()
        self._follower = follower
        self._position = position
        self._read = read
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's three)
        await converse(receive, self._talk(send), lambda: self._ended(self._follower))

    async def _talk(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(part(b"retry: 2000\n\n"))
        try:
            await self._tell(send)
        except DomainError as error:  # the credential, or what was followed, is no more
            await send(part(f": {error}\n\n".encode()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        written_at, held_s = clock(), _HELD_S[0]
        while not self._follower.over.is_set():
            self._follower.news.clear()
            chapter = await self._chapter()
            text = b"".join(map(written, chapter.events))
            if not text and clock() - written_at >= HEARTBEAT_S:
                text = b": still here\n\n"
            if text:
                await send(part(text))
                written_at = clock()
            self._position = chapter.position
            if chapter.has_more or self._follower.over.is_set():
                continue
            # While something is held back, its commit has been notified already: nobody will say when it may be told.
            await self._follower.wait(held_s if chapter.is_held_back else max(0.0, written_at + HEARTBEAT_S - clock()))
            held_s = min(held_s * 2, _HELD_S[1]) if chapter.is_held_back else _HELD_S[0]

    async def _chapter(self) -> Chapter:
        while True:
            try:
                return await self._read(self._follower.question, self._position)
            except SQLAlchemyError as error:
                log.warning("events cannot be read, trying again: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_S)
                if self._follower.over.is_set():
                    return Chapter((), self._position, has_more=False, is_held_back=False)


@dataclass(frozen=True)
class Desk:
    """What following needs for the life of the process."""

    services: Services
    threads: ThreadPoolExecutor
    followers: Followers

    async def begin(self, caller: Caller, wish: FeedWish, after: Position | None) -> FollowResponse:
        """Raises NotFound, TooManyFollowers."""
        wanted, position = await _work(self.services, self.threads, caller, feed.begin, wish, after)
        return self.followers.open(Question(caller, wanted), position)


@asynccontextmanager
async def open_desk(services: Services) -> AsyncIterator[Desk]:
    """For the life of the application. Followers end first on the way out."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="feed") as threads:

        async def read(question: Question, position: Position) -> Chapter:
            chapter: Chapter = await _work(services, threads, question.caller, feed.go_on, question.wanted, position)
            return chapter

        followers = Followers(read)
        ear = asyncio.create_task(listen(services.settings.database_url, EVENT, followers.wake, name="events"))
        try:
            yield Desk(services, threads, followers)
        finally:
            followers.shut_down()
            ear.cancel()
            await asyncio.gather(ear, return_exceptions=True)


def written(told: feed.Happened) -> bytes:
    """One event as the stream has it. Its id is the position after it, which Last-Event-ID brings back."""
    row = shape(told)
    return f"id: {row.position}\ndata: {json.dumps(json.loads(row.model_dump_json(by_alias=True)))}\n\n".encode()


async def _work(services: Services, threads: ThreadPoolExecutor, caller: Caller, use_case: Callable[..., Any], *args: Any) -> Any:
    def run() -> Any:
        with unit_of_work(services.sessions) as session:
            return use_case(Work(session, services.clock.now(), services.settings.region, caller), *args)

    return await asyncio.get_running_loop().run_in_executor(threads, run)
