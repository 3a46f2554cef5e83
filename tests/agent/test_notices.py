"""The agent's watch for notices, against a small metadata service that speaks version 2 of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.notices import Notices
from everstep.notices import Evacuation, NoticeKind, SpotNotice

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Metadata(ThreadingHTTPServer):
    """``documents`` by path; ``is_away``: it answers that it cannot. A token is good until ``token`` changes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.documents: dict[str, str] = {}
        self.token = "first"
        self.is_away = False
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        is_well_asked = self.path == "/latest/api/token" and int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        self._answer(200 if is_well_asked else 400, self.server.token)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.headers["X-aws-ec2-metadata-token"] != self.server.token:
            return self._answer(401, "")
        found = self.server.documents.get(self.path)
        return self._answer(404 if found is None else 200, found or "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(503 if self.server.is_away else status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        """Quietly."""


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Told:
    """What was reported, and what the node's processes were told."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.reports: list[SpotNotice] = []
        self.evacuations: list[Evacuation] = []
        self._news = asyncio.Event()
        self.notices = Notices(
            state_dir=folder,
            environment={"EVERSTEP_IMDS_URL": url} if url else {},
            tell=self.evacuations.append,
            report=self._heard,
        )

    def _heard(self, report: Any) -> None:
        self.reports.append(report)
        self._news.set()

    async def until_reports(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.reports) < count:
                self._news.clear()
                await self._news.wait()


def watching(folder: Path, metadata: Metadata, scenario: Callable[[Told], Awaitable[None]]) -> Told:
    async def run() -> Told:
        told = Told(folder, metadata.url)
        await told.notices.start()
        try:
            await scenario(told)
        finally:
            await told.notices.stop()
        return told

    return asyncio.run(run())


def taken(time_: str = "2031-05-01T08:22:00Z", action: str = "terminate") -> str:
    return json.dumps({"action": action, "time": time_})


def test_an_interruption_is_told_within_two_seconds_once_and_its_end_too(tmp_path: Path, metadata: Metadata):
    async def scenario(told: Told) -> None:
        began = time.monotonic()
        metadata.documents[ACTION] = taken()
        await told.until_reports(1)
        assert time.monotonic() - began < 2.0
        await asyncio.sleep(2.5)  # looks at the same notice, which is no news
        assert len(told.reports) == 1
        del metadata.documents[ACTION]
        await told.until_reports(2)

    told = watching(tmp_path, metadata, scenario)
    assert [(one.notice, one.deadline, one.is_over, one.source) for one in told.reports] == [
        (NoticeKind.INTERRUPTION, 1935390120.0, False, "imds"),
        (NoticeKind.INTERRUPTION, None, True, "imds"),
    ]
    assert [(one.deadline, one.is_over) for one in told.evacuations] == [(1935390120.0, False), (None, True)]


def test_a_deadline_that_moves_is_told_again_and_a_recommendation_has_none(tmp_path: Path, metadata: Metadata):
    async def scenario(told: Told) -> None:
        metadata.documents[REBALANCE] = json.dumps({"noticeTime": "2031-05-01T08:00:00Z"})
        await told.until_reports(1)
        metadata.documents[ACTION] = taken()
        await told.until_reports(2)
        metadata.documents[ACTION] = taken("2031-05-01T08:21:00Z")
        await told.until_reports(3)

    told = watching(tmp_path, metadata, scenario)
    assert [(one.notice, one.deadline) for one in told.reports] == [
        (NoticeKind.REBALANCE, None),
        (NoticeKind.INTERRUPTION, 1935390120.0),
        (NoticeKind.INTERRUPTION, 1935390060.0),
    ]
    assert [one.deadline for one in told.evacuations] == [None, 1935390120.0, 1935390060.0]


def test_metadata_that_is_away_or_forgets_its_tokens_withdraws_nothing(tmp_path: Path, metadata: Metadata):
    async def scenario(told: Told) -> None:
        metadata.documents[ACTION] = taken()
        await told.until_reports(1)
        metadata.is_away = True
        asked = len(metadata.asked)
        await asyncio.sleep(1.5)
        metadata.is_away, metadata.token = False, "second"
        metadata.documents[ACTION] = "no object"
        await asyncio.sleep(1.5)
        assert len(metadata.asked) > asked
        assert len(told.reports) == 1
        metadata.documents[ACTION] = taken("2031-05-01T08:21:00Z")
        await told.until_reports(2)

    watching(tmp_path, metadata, scenario)


def test_an_agent_that_is_started_again_tells_again_what_stands(tmp_path: Path):
    async def scenario() -> None:
        first = Told(tmp_path)
        await first.notices.start()
        first.notices.announce(SpotNotice(NoticeKind.INTERRUPTION, 1.0, 121.0, source="injected"))
        first.notices.announce(SpotNotice(NoticeKind.INTERRUPTION, 2.0, 121.0, source="injected"))
        assert len(first.reports) == 1
        second = Told(tmp_path)
        await second.notices.start()
        assert [(one.source, one.deadline) for one in second.reports] == [("injected", 121.0)]
        assert [one.deadline for one in second.evacuations] == [121.0]
        second.notices.announce(SpotNotice(NoticeKind.INTERRUPTION, 3.0, source="injected", is_over=True))
        assert [one.is_over for one in second.evacuations] == [False, True]
        third = Told(tmp_path)
        await third.notices.start()
        assert (third.reports, third.evacuations) == ([], [])

    asyncio.run(scenario())


def test_the_earliest_deadline_counts_and_what_the_control_plane_withdraws_does_not_end_a_providers_notice(tmp_path: Path):
    async def scenario() -> None:
        told = Told(tmp_path)
        told.notices.announce(SpotNotice(NoticeKind.INTERRUPTION, 1.0, 200.0))
        told.notices.hear(Evacuation(3, "to be replaced", 100.0))
        told.notices.hear(Evacuation(4, "stays", is_over=True))
        told.notices.announce(SpotNotice(NoticeKind.INTERRUPTION, 2.0, is_over=True))
        assert [(one.deadline, one.is_over) for one in told.evacuations] == [
            (200.0, False),
            (100.0, False),
            (200.0, False),
            (None, True),
        ]

    asyncio.run(scenario())


def test_what_the_agent_before_this_one_has_told_is_taken_back_by_the_control_planes_word_alone(tmp_path: Path):
    async def scenario() -> None:
        told = Told(tmp_path)
        told.notices.hear(Evacuation(4, "stays", is_over=True))
        assert [one.is_over for one in told.evacuations] == [True]

    asyncio.run(scenario())


def test_a_notice_is_told_even_if_it_cannot_be_kept(tmp_path: Path, metadata: Metadata):
    folder = tmp_path / "gone"  # nothing can be written below a folder that is not there

    async def scenario(told: Told) -> None:
        metadata.documents[ACTION] = taken()
        await told.until_reports(1)
        metadata.documents[ACTION] = taken("2031-05-01T08:21:00Z")
        await told.until_reports(2)

    told = watching(folder, metadata, scenario)
    assert [one.deadline for one in told.reports] == [1935390120.0, 1935390060.0]
    assert [one.deadline for one in told.evacuations] == [1935390120.0, 1935390060.0]


def test_the_watch_goes_on_after_what_nobody_has_foreseen(tmp_path: Path, metadata: Metadata):
    async def run() -> list[SpotNotice]:
        heard: list[SpotNotice] = []
        news = asyncio.Event()

        def report(notice: Any) -> None:
            heard.append(notice)
            if len(heard) == 1:
                message = "not foreseen"
                raise RuntimeError(message)
            news.set()

        notices = Notices(
            state_dir=tmp_path, environment={"EVERSTEP_IMDS_URL": metadata.url}, tell=lambda _told: None, report=report
        )
        metadata.documents[ACTION] = taken()
        metadata.documents[REBALANCE] = json.dumps({"noticeTime": "2031-05-01T08:00:00Z"})
        await notices.start()
        await asyncio.wait_for(news.wait(), 8.0)
        await notices.stop()
        return heard

    first, second = asyncio.run(run())
    assert (first.notice, second.notice) == (NoticeKind.INTERRUPTION, NoticeKind.REBALANCE)
