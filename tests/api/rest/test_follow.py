"""``/v1/events``: one log of everything, listed, and followed without loss or repetition."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import select

from api.auth import Caller
from api.rest.follow import MOST, MOST_OF_ONE, Followers, Question, TooManyFollowers
from models import events
from models.access.changes import Grant, request_credential, request_revocation
from models.access.states import Kind, Role
from models.access.table import Credential
from models.cluster.table import Cluster
from models.events import About, Level
from models.feed import FeedFilter, Position
from models.session import Sessions, unit_of_work
from tests import rows
from tests.live import Api, ApiProcess, ThreadedApi, wait_for
from tests.postgres import plain

Call = Callable[..., httpx.Response]


@pytest.fixture
def call(api: ThreadedApi, bearer: str) -> Call:
    def call(path: str, token: str = bearer, **params: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        return httpx.get(f"{api.url}{path}", params=params, headers=headers, timeout=20.0, verify=False)

    return call


@pytest.fixture
def cluster(sessions: Sessions) -> Cluster:
    with unit_of_work(sessions) as session:
        return rows.cluster(session)


class Following:
    """A stream of events being read."""

    def __init__(self, api: Api, token: str, *, last: str | None = None, **params: Any) -> None:
        self.told: Queue[tuple[str, dict[str, Any]]] = Queue()
        self.comments: Queue[str] = Queue()
        self.over = threading.Event()
        headers = {"authorization": f"Bearer {token}"} | ({"last-event-id": last} if last else {})
        self._client = httpx.Client(base_url=api.url, timeout=20.0, verify=False, headers=headers)
        self._answer = self._client.send(
            self._client.build_request("GET", "/v1/events", params={"follow": "true", **params}), stream=True
        )
        assert self._answer.status_code == 200, self._answer.read()
        assert self._answer.headers["content-type"] == "text/event-stream"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def names(self, count: int) -> list[str]:
        return [self.told.get(timeout=10.0)[1]["Name"] for _ in range(count)]

    def leave(self) -> None:
        """As a caller's end looks from outside: its connection is gone."""
        self._answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self.join()

    def join(self) -> None:
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        self._client.close()

    def _read(self) -> None:
        position = ""
        try:
            for line in self._answer.iter_lines():
                if line.startswith("id: "):
                    position = line[4:]
                elif line.startswith("data: "):
                    self.told.put((position, json.loads(line[6:])))
                elif line.startswith(":"):
                    self.comments.put(line)
        except httpx.HTTPError:
            pass
        finally:
            self.over.set()


@contextmanager
def following(api: ThreadedApi, token: str, **params: Any) -> Iterator[Following]:
    stream = Following(api, token, **params)
    try:
        yield stream
    finally:
        desk, loop = api.server.config.app.state.desk, api.server.config.app.state.agents.loop
        loop.call_soon_threadsafe(desk.followers.shut_down)
        stream.join()


def happen(sessions: Sessions, name: str, **more: Any) -> None:
    with unit_of_work(sessions) as session:
        events.record(session, name, f"{name} happened.", **({"about": About.CLUSTER, "now": rows.NOW} | more))


def test_events_are_listed_page_by_page_and_filtered(call: Call, sessions: Sessions, cluster: Cluster) -> None:
    happen(sessions, "one", cluster_id=cluster.id, level=Level.ERROR)
    happen(sessions, "two")
    happen(sessions, "three", about=About.ALARM, cluster_id=cluster.id)
    first = call("/v1/events", max_results=2).json()
    second = call("/v1/events", max_results=2, next_token=first["NextToken"]).json()
    names = [event["Name"] for event in first["Events"] + second["Events"]]
    assert names == ["creation requested", "one", "two", "three"]
    assert [event["Name"] for event in call("/v1/events", sort_order="Descending", max_results=1).json()["Events"]] == ["three"]
    for params, found in (
        ({"cluster": "c1"}, ["creation requested", "one", "three"]),
        ({"Cluster": cluster.arn, "level": "Error"}, ["one"]),
        ({"resource_type": "Alarm"}, ["three"]),
        ({"after": first["Events"][1]["Position"]}, ["two", "three"]),
    ):
        assert [event["Name"] for event in call("/v1/events", **params).json()["Events"]] == found
    assert first["Events"][1]["ClusterName"] == "c1"


@pytest.mark.parametrize(
    "params, status",
    [
        ({"cluster": "c9"}, 404),
        ({"follow": "true", "cluster": "c9"}, 404),
        ({"follow": "true", "after": "nonsense"}, 422),
        ({"follow": "true", "max_results": "3"}, 422),
        ({"follow": "perhaps"}, 422),
        ({"follow": "true", "flavour": "x"}, 422),
        ({"level": "Loud"}, 422),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_sent(call: Call, params: dict[str, str], status: int) -> None:
    assert call("/v1/events", **params).status_code == status


def test_a_follower_is_told_what_happens_and_only_what_it_asked_for(
    api: ThreadedApi, bearer: str, sessions: Sessions, cluster: Cluster
) -> None:
    with following(api, bearer, cluster="c1", level="Warn") as stream:
        happen(sessions, "another cluster's", level=Level.WARN)
        happen(sessions, "no warning", cluster_id=cluster.id)
        happen(sessions, "wanted", cluster_id=cluster.id, level=Level.WARN)
        assert stream.names(1) == ["wanted"]


def test_transactions_that_commit_out_of_order_lose_and_repeat_nothing(api: ThreadedApi, bearer: str, sessions: Sessions) -> None:
    """The slow one has written first and commits last; a reader that went by sequence numbers would never see it."""
    with following(api, bearer) as stream:
        happen(sessions, "before")
        [position] = [stream.told.get(timeout=10.0)[0]]
        with sessions() as slow, slow.begin():
            events.record(slow, "slow", "", about=About.CLUSTER, now=rows.NOW)
            slow.flush()
            happen(sessions, "quick")
            with sessions() as slower, slower.begin():
                events.record(slower, "slower", "", about=About.CLUSTER, now=rows.NOW)
                slower.flush()
                slow.commit()
                told = [stream.told.get(timeout=10.0) for _ in range(2)]
                assert {event["Name"] for _, event in told} == {"slow", "quick"}
        assert stream.names(1) == ["slower"]
        assert stream.told.empty()
    api.stop()
    api.start()
    with following(api, bearer, last=position) as again:
        assert again.names(3) == [told[0][1]["Name"], told[1][1]["Name"], "slower"]


def test_a_follower_goes_on_after_any_event_and_hears_the_same_rest(
    api: ThreadedApi, bearer: str, call: Call, sessions: Sessions
) -> None:
    for number in range(450):  # more than two pages
        happen(sessions, f"event {number}")
    told = call("/v1/events", max_results=500).json()["Events"]
    with following(api, bearer, after=told[40]["Position"]) as stream:
        assert stream.names(409) == [event["Name"] for event in told[41:]]
        happen(sessions, "fresh")
        assert stream.names(1) == ["fresh"]


def test_many_writers_and_a_follower_that_comes_back_agree_on_everything(api: ThreadedApi, bearer: str, sessions: Sessions) -> None:
    """Interleaved transactions of random length; the follower reconnects after every few events, at its last position."""
    count, writers = 20, 4

    def write(writer: int) -> None:
        for number in range(count):
            with unit_of_work(sessions) as session:
                events.record(session, f"{writer}.{number}", "", about=About.CLUSTER, now=rows.NOW)
                session.flush()
                time.sleep(0.001 * ((number * 7 + writer * 3) % 5))

    heard: list[str] = []
    position = "0-0"
    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    while len(heard) < count * writers:
        stream = Following(api, bearer, last=position)
        for _ in range(min(17, count * writers - len(heard))):
            position, event = stream.told.get(timeout=10.0)
            heard.append(event["Name"])
        stream.leave()
    for thread in threads:
        thread.join()
    assert sorted(heard) == sorted(f"{writer}.{number}" for writer in range(writers) for number in range(count))


def test_calls_are_told_to_admins_alone(api: ThreadedApi, bearer: str, call: Call, sessions: Sessions) -> None:
    viewer = token_of(sessions)
    happen(sessions, "CreateCluster", about=About.CALL)
    happen(sessions, "after it")
    assert [event["Name"] for event in call("/v1/events").json()["Events"]] == ["CreateCluster", "after it"]
    assert [event["Name"] for event in call("/v1/events", viewer).json()["Events"]] == ["after it"]
    with following(api, viewer, after="0-0") as stream:
        assert stream.names(1) == ["after it"]


def token_of(sessions: Sessions, **more: Any) -> str:
    grant = {
        "name": "eve",
        "kind": Kind.TOKEN,
        "role": Role.VIEWER,
        "team": None,
        "account_id": "123456789012",
        "created_by": "test",
    }
    with unit_of_work(sessions) as session:
        return request_credential(session, Grant(**(grant | more)), master_key=rows.MASTER_KEY, now=rows.NOW)[1]


def test_a_team_s_follower_is_told_what_its_team_may_see(api: ThreadedApi, sessions: Sessions, cluster: Cluster) -> None:
    with unit_of_work(sessions) as session:
        theirs = rows.cluster(session, "theirs", team="blue")
    with following(api, token_of(sessions, team="red"), after="0-0") as stream:
        happen(sessions, "of blue", cluster_id=theirs.id)
        happen(sessions, "of all", cluster_id=cluster.id)
        assert stream.names(2) == ["creation requested", "of all"]


def test_a_follower_whose_credential_is_revoked_is_told_nothing_more(api: ThreadedApi, sessions: Sessions) -> None:
    stream = Following(api, token_of(sessions))
    with unit_of_work(sessions) as session:
        key = session.scalars(select(Credential).where(Credential.name == "eve")).one()
        request_revocation(session, key, now=rows.NOW)
    happen(sessions, "too late")
    assert stream.over.wait(5.0)
    assert stream.told.empty()
    stream.join()


def test_followers_share_a_few_connections_however_many_they_are(
    api: ThreadedApi, bearer: str, sessions: Sessions, database_url: str
) -> None:
    streams = [Following(api, bearer) for _ in range(40)]
    happen(sessions, "heard by all")
    assert [stream.names(1) for stream in streams] == [["heard by all"]] * 40
    with psycopg.connect(plain(database_url)) as server:
        found = server.execute("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()").fetchall()
    assert len([name for (name,) in found if name == "everstep events"]) == 1
    assert len(found) < 20
    for stream in streams:
        stream.leave()
    assert wait_for(lambda: not api.server.config.app.state.desk.followers._open)


def test_an_event_whose_notification_was_lost_is_told_all_the_same(
    api: ThreadedApi, bearer: str, sessions: Sessions, database_url: str
) -> None:
    with following(api, bearer) as stream:
        with psycopg.connect(plain(database_url), autocommit=True) as server:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'everstep events'")
        happen(sessions, "unheard")
        assert stream.names(1) == ["unheard"]


def test_a_shutdown_ends_the_streams_quickly(api_process: ApiProcess, bearer: str) -> None:
    stream = Following(api_process, bearer)
    assert api_process.stop(signal.SIGTERM) < 5.0
    assert stream.over.wait(5.0)
    stream.join()


def test_a_follower_that_reads_nothing_costs_one_page_and_holds_nobody_up(
    api: ThreadedApi, bearer: str, sessions: Sessions
) -> None:
    with socket.create_connection(("127.0.0.1", api.port)) as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.sendall(f"GET /v1/events?follow=1&after=0-0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n\r\n".encode())
        with unit_of_work(sessions) as session:
            for number in range(600):
                details = {"filler": "x" * 20_000}
                events.record(session, f"event {number}", "", about=About.CLUSTER, now=rows.NOW, details=details)
        with following(api, bearer, after="0-0") as stream:
            assert stream.names(600)[-1] == "event 599"


def test_one_key_does_not_keep_the_followers_of_others_out() -> None:
    async def open_many() -> None:
        followers = Followers(lambda *_: asyncio.sleep(0))
        greedy, other = (Question(Caller("1", name, key_id=name), FeedFilter()) for name in ("greedy", "other"))
        for _ in range(MOST_OF_ONE):
            followers.open(greedy, Position(0, 0))
        with pytest.raises(TooManyFollowers, match="This key"):
            followers.open(greedy, Position(0, 0))
        followers.open(other, Position(0, 0))

    assert MOST_OF_ONE < MOST
    asyncio.run(open_many())
