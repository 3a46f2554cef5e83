"""Agents are told by when their nodes must be left, and tell what had not left."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from api.operations import agents
from models.clock import WallClock
from models.events import Event
from models.node import queries as nodes
from models.node.changes import settle_leaving, settle_staying
from models.session import Sessions, unit_of_work
from tests.api.agents.test_streams import Listening, registered
from tests.live import Place, ThreadedApi, Work


def test_a_node_that_is_to_be_left_is_told_so_at_once_with_each_change_and_when_it_may_stay(
    api: ThreadedApi, place: Place, sessions: Sessions
):
    now = WallClock().now()

    def said(by: timedelta | None, why: str) -> None:
        with unit_of_work(sessions) as session:
            node = nodes.get(session, place.node_id, lock=True)
            if by is None:
                settle_staying(session, node, why=why, now=now)
            else:
                settle_leaving(session, node, by=now + by, why=why, now=now)

    stream = Listening(api, registered(api, place))
    said(timedelta(seconds=120), "taken back")
    _, first = stream.directive()
    said(timedelta(seconds=60), "taken back sooner")
    _, second = stream.directive()
    said(timedelta(seconds=60), "taken back sooner")
    said(None, "it may stay")
    _, third = stream.directive()
    api.stop()
    stream.join()
    assert first == {
        "evacuate": {"id": 1, "why": "taken back", "deadline": (now + timedelta(seconds=120)).timestamp(), "is_over": False}
    }
    assert (second["evacuate"]["id"], second["evacuate"]["deadline"]) == (2, (now + timedelta(seconds=60)).timestamp())
    assert (third["evacuate"]["id"], third["evacuate"]["is_over"]) == (3, True)


def test_a_stream_that_opens_later_says_how_it_is_by_then(api: ThreadedApi, place: Place, sessions: Sessions):
    now = WallClock().now()
    token = registered(api, place)
    streams = []
    for is_over in (False, True):
        with unit_of_work(sessions) as session:
            node = nodes.get(session, place.node_id, lock=True)
            if is_over:
                settle_staying(session, node, why="stays", now=now)
            else:
                settle_leaving(session, node, by=None, why="to be replaced", now=now)
        streams.append(Listening(api, token))
        _, told = streams[-1].directive()
        assert told["evacuate"]["is_over"] is is_over
        assert "deadline" not in told["evacuate"]
    api.stop()
    for stream in streams:
        stream.join()


def test_a_lost_word_that_a_node_may_stay_is_told_by_the_poll(place: Place, sessions: Sessions):
    now = WallClock().now()
    with unit_of_work(sessions) as session:
        assert agents.undelivered(session, [place.node_id]) == []
    for is_over in (False, True):
        with unit_of_work(sessions) as session:
            node = nodes.get(session, place.node_id, lock=True)
            if is_over:
                settle_staying(session, node, why="stays", now=now)
            else:
                settle_leaving(session, node, by=None, why="to be replaced", now=now)
        with unit_of_work(sessions) as session:
            assert agents.undelivered(session, [place.node_id]) == [place.node_id]


def test_a_process_that_was_cut_at_the_deadline_is_an_event_of_its_job(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions
):
    token = registered(api, place)
    report = {"kind": "cut", "job": work.job_id, "process": work.process_id, "why": "taken back", "at": 1.0}
    body = {"boot": place.registration()["boot"], "reports": [{"sequence": 1, "report": report}]}
    for _ in range(2):
        assert api.post("/agent/v1/reports", body, token).status_code == 200
    with unit_of_work(sessions) as session:
        told = session.scalars(select(Event.description).where(Event.name == "process cut")).all()
    assert told == [f"Rank 0 ({work.process_id}) had not left its node in time and was ended: taken back"]
