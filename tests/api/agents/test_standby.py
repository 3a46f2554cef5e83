"""Nodes of spare pools are told what they may have to run, and nobody else is."""

from __future__ import annotations

from collections.abc import Callable

from models.clock import WallClock
from models.cluster import queries as clusters
from models.cluster.changes import request_spare_pool
from models.job.changes import settle_job
from models.job.states import JobState
from models.job.table import Job
from models.node import queries as nodes
from models.node.changes import settle_standby
from models.session import Session, Sessions, unit_of_work
from tests.agent.test_loop_against_the_control_plane import assign
from tests.api.agents.test_streams import Listening, registered
from tests.live import Place, ThreadedApi, Work

COMMAND = ["python", "train.py"]


def written(sessions: Sessions, place: Place, change: Callable[[Session], None]) -> None:
    with unit_of_work(sessions) as session:
        change(session)
        settle_standby(session, nodes.get(session, place.node_id).cluster_id)


def pool(sessions: Sessions, place: Place, count: int) -> None:
    def change(session: Session) -> None:
        node = nodes.get(session, place.node_id)
        cluster, group = clusters.get(session, node.cluster_id, lock=True), clusters.group(session, node.group_id)
        request_spare_pool(session, cluster, group, count, now=WallClock().now())

    written(sessions, place, change)


def move(sessions: Sessions, place: Place, work: Work, state: JobState) -> None:
    written(
        sessions,
        place,
        lambda session: settle_job(session, session.get_one(Job, work.job_id), state, why="test", now=WallClock().now()),
    )


def test_a_pools_node_hears_of_each_job_that_has_begun_and_that_it_is_over(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions, tmp_path
):
    assign(sessions, place, work, COMMAND, tmp_path)
    stream = Listening(api, registered(api, place))
    stream.directive()
    pool(sessions, place, 1)
    _, first = stream.directive()
    move(sessions, place, work, JobState.FORMING)
    _, second = stream.directive()
    pool(sessions, place, 0)
    _, third = stream.directive()
    pool(sessions, place, 2)
    _, fourth = stream.directive()
    move(sessions, place, work, JobState.FAILED)
    _, fifth = stream.directive()
    api.stop()
    stream.join()
    [expected] = second["standby"]["expected"]
    assert (expected["launch"]["command"], expected["is_alone"]) == (COMMAND, False)
    assert fourth == second
    assert [one["standby"] for one in (first, third, fifth)] == [{"expected": []}] * 3


def test_a_node_whose_group_never_had_a_pool_is_told_nothing(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions, tmp_path
):
    assign(sessions, place, work, COMMAND, tmp_path)
    move(sessions, place, work, JobState.FORMING)
    stream = Listening(api, registered(api, place))
    _, told = stream.directive()
    api.stop()
    stream.join()
    assert "assignment" in told
    assert not any("standby" in stream.lines.get()[1] for _ in range(stream.lines.qsize()))
