"""Directive streams: how soon a directive arrives, how soon an end is noticed, and whose end is not one."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from queue import Empty, Queue

import httpx
import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from starlette.types import Message

from api.agents.streams import Ledger, Streams
from api.operations.agents import Line
from models.clock import WallClock
from models.directive.changes import settle_assignment
from models.directive.states import DirectiveState
from models.directive.table import Directive
from models.ids import NodeId
from models.job import queries as jobs
from models.job.table import Job
from models.node.table import Node
from models.notify import NUDGE
from models.session import Sessions, unit_of_work
from tests.live import Api, ApiProcess, Place, ThreadedApi, Work, wait_for
from tests.postgres import plain

Look = Callable[[str], Node]


def registered(api: Api, place: Place) -> str:
    return str(api.post("/agent/v1/register", place.registration()).json()["node_token"])


class Listening:
    """A stream being read: every line with the time at which it came."""

    def __init__(self, api: Api, token: str) -> None:
        self.lines: Queue[tuple[float, str]] = Queue()
        self.over = threading.Event()
        self._client = httpx.Client(base_url=api.url, timeout=httpx.Timeout(10.0), verify=False)
        self._thread = threading.Thread(target=self._read, args=(token,))
        self._thread.start()

    def directive(self, within_s: float = 5.0) -> tuple[float, dict]:
        """The next line that is no keep-alive."""
        while True:
            at, line = self.lines.get(timeout=within_s)
            if line:
                return at, json.loads(line)

    def join(self) -> None:
        self._thread.join(10.0)
        self._client.close()

    def _read(self, token: str) -> None:
        try:
            with self._client.stream("GET", "/agent/v1/directives", headers={"authorization": f"Bearer {token}"}) as answer:
                for line in answer.iter_lines():
                    self.lines.put((time.monotonic(), line))
        except httpx.HTTPError:
            pass
        finally:
            self.over.set()


@contextmanager
def raw_stream(api: Api, token: str) -> Iterator[socket.socket]:
    """A stream on a bare socket, which can vanish as a killed process's does."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=5.0) as connection:
        connection.sendall(f"GET /agent/v1/directives HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        assert b"200 OK" in connection.recv(4096)
        yield connection


def assign(sessions: Sessions, place: Place, work: Work, number: int) -> float:
    """Commits an assignment; returns when."""
    assignment = {"job": work.job_id, "launch": {"command": ["sleep", str(number)], "working_dir": "/"}, "processes": []}
    with unit_of_work(sessions) as session:
        settle_assignment(session, place.node_id, work.job_id, assignment, now=WallClock().now())
    return time.monotonic()


def test_a_stream_first_tells_all_that_should_run_and_then_that_this_was_all(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions
):
    assign(sessions, place, work, 1)
    assign(sessions, place, work, 2)
    stream = Listening(api, registered(api, place))
    lines = [stream.lines.get(timeout=5.0)[1] for _ in range(2)]
    assert json.loads(lines[0])["assignment"]["launch"]["command"] == ["sleep", "2"]
    assert lines[1] == ""
    api.stop()
    stream.join()


def test_a_directive_arrives_within_a_tenth_of_a_second_of_its_commit(
    api_process: ApiProcess, place: Place, work: Work, sessions: Sessions
):
    stream = Listening(api_process, registered(api_process, place))
    delays = []
    for number in range(1, 41):
        committed = assign(sessions, place, work, number)
        arrived, _ = stream.directive()
        delays.append(arrived - committed)
    api_process.stop()
    stream.join()
    print(f"median {statistics.median(delays) * 1e3:.1f} ms, worst {max(delays) * 1e3:.1f} ms")
    assert statistics.median(delays) < 0.1


def test_delivered_directives_are_marked(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    stream = Listening(api, registered(api, place))
    assign(sessions, place, work, 1)
    _, told = stream.directive()

    def is_delivered() -> bool:
        with sessions() as session:
            return session.get_one(Directive, told["id"]).state is DirectiveState.DELIVERED

    wait_for(is_delivered)
    api.stop()
    stream.join()


def test_a_directive_arrives_although_its_notification_was_lost(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions, database_url: str
):
    stream = Listening(api, registered(api, place))
    stream.lines.get(timeout=5.0)
    with psycopg.connect(plain(database_url), autocommit=True) as server:
        ended = server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'everstep directives' "
            "AND datname = current_database()"
        ).fetchall()
    assert ended == [(True,)]
    assign(sessions, place, work, 1)
    stream.directive()
    api.stop()
    stream.join()


def test_a_stream_that_breaks_is_reported_at_once_and_wakes_the_jobs_of_the_node(
    api_process: ApiProcess, place: Place, work: Work, look: Look, listen: Callable
):
    token = registered(api_process, place)
    ear = listen(NUDGE)
    with raw_stream(api_process, token):
        assert look(place.node_id).stream_lost_at is None
        ear.heard()
        began = time.monotonic()
    wait_for(lambda: look(place.node_id).stream_lost_at, 5.0)
    noticed = time.monotonic() - began
    print(f"noticed within {noticed * 1e3:.0f} ms")
    assert noticed < 1.0
    assert f"job:{work.job_id}" in ear.heard(within_s=1.0, at_least=2)


def test_a_newer_stream_of_the_node_replaces_the_older_and_nobody_is_cut_off(api: ThreadedApi, place: Place, look: Look):
    token = registered(api, place)
    older = Listening(api, token)
    older.lines.get(timeout=5.0)
    newer = Listening(api, token)
    newer.lines.get(timeout=5.0)
    assert older.over.wait(5.0)
    older.join()
    time.sleep(0.2)
    assert look(place.node_id).stream_lost_at is None
    api.stop()
    newer.join()


def test_a_shutdown_ends_the_streams_quickly_and_reports_no_node_as_cut_off(api_process: ApiProcess, place: Place, look: Look):
    stream = Listening(api_process, registered(api_process, place))
    stream.lines.get(timeout=5.0)
    assert api_process.stop(signal.SIGTERM) < 5.0
    stream.join()
    assert look(place.node_id).stream_lost_at is None


def test_a_stream_without_a_known_token_is_refused(api: ThreadedApi, place: Place):
    registered(api, place)
    assert httpx.get(f"{api.url}/agent/v1/directives", headers={"authorization": "Bearer x"}).status_code == 401


def test_directives_of_two_jobs_that_commit_out_of_order_both_arrive(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions
):
    stream = Listening(api, registered(api, place))
    stream.lines.get(timeout=5.0)
    with sessions() as session, session.begin():
        first = jobs.get(session, work.job_id)
        cluster_id = first.cluster_id
    with unit_of_work(sessions) as session:
        from_other = Job(
            **{column.name: getattr(first, column.name) for column in Job.__table__.columns} | {"id": "job-other", "name": "o"}
        )
        session.add(from_other)
    assert cluster_id
    slow = sessions()
    slow.begin()
    assignment = {"job": work.job_id, "launch": {"command": ["a"], "working_dir": "/"}}
    settle_assignment(slow, place.node_id, work.job_id, assignment, now=WallClock().now())
    assign(sessions, place, Work("job-other", "p"), 1)
    _, quick = stream.directive()
    slow.commit()
    slow.close()
    _, late = stream.directive()
    assert late["id"] < quick["id"]
    api.stop()
    with pytest.raises(Empty):
        stream.lines.get(timeout=0.01) and stream.lines.get(timeout=0.01)
    stream.join()


@dataclass
class Book:
    """A ledger of the test's own, and the stream that asks it."""

    lines: list[Line]
    failures: list[Exception] = field(default_factory=list)
    noted: list[list[int]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    has_time: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Streams]:
        self.has_time.set()
        gone = asyncio.Event()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.sent.append(message.get("body", b""))

        streams = Streams(Ledger(self._directives, self._assignments, self._deliver, self._close))
        running = asyncio.create_task(streams.open(NodeId("n"), "name")({}, receive, send))
        async with asyncio.timeout(5):
            yield streams
        gone.set()
        await running

    async def until(self, claim: Callable[[], bool]) -> None:
        while not claim():
            await asyncio.sleep(0.01)

    @property
    def told(self) -> list[int]:
        return [json.loads(line)["id"] for line in b"".join(self.sent).splitlines() if line]

    async def _directives(self, _: NodeId) -> list[Line]:
        return [line for line in self.lines if "assignment" in line.wire]

    async def _assignments(self, _: NodeId) -> list[Line]:
        await self.has_time.wait()
        return self.lines

    async def _deliver(self, ids: Sequence[int]) -> None:
        if self.failures:
            raise self.failures.pop()
        self.noted.append(list(ids))

    async def _close(self, _: NodeId, __: str) -> None:
        return


def of_job(number: int, job: str) -> Line:
    return Line(number, {"id": number, "assignment": {"job": job}})


def test_a_delivery_that_could_not_be_noted_is_noted_later():
    """A directive would wait for its delivery for ever otherwise, and its job would never be done with the node."""

    async def scenario() -> None:
        book = Book([of_job(7, "one")], failures=[OperationalError("UPDATE", {}, Exception("down"))])
        async with book.read():
            await book.until(lambda: bool(book.noted))
        assert (book.noted, book.told) == ([[7]], [7])

    asyncio.run(scenario())


def test_what_is_new_of_a_running_job_goes_before_all_else_is_looked_for_and_a_new_job_waits_for_it():
    async def scenario() -> None:
        book = Book([Line(-5, {"id": -5, "memory_tier": {}}), of_job(7, "one")])
        async with book.read() as streams:
            await book.until(lambda: book.noted == [[-5, 7]])
            book.has_time.clear()
            book.lines = [Line(-6, {"id": -6, "memory_tier": {}}), of_job(8, "one"), of_job(9, "two")]
            streams.wake(["n"])
            await book.until(lambda: 8 in book.told)
            assert book.told == [-5, 7, 8]
            book.has_time.set()
            await book.until(lambda: len(book.noted) == 2)
        assert book.told == [-5, 7, 8, -6, 9], "each once"
        assert book.noted[1] == [-6, 8, 9]

    asyncio.run(scenario())
