"""Plans of memory tiers on real streams, and reports of checkpoints through the agents' door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session

from api.auth import Caller
from api.operations import clusters as operations
from api.operations.clusters import ClusterChange
from api.operations.work import Work as UseCase
from everstep.tiers import CopiesReport, CopyStatus, CopyTold, DurableReport, SavedReport, TierPlan, TierReport
from models.access.secrets import namespace_token
from models.checkpoint import queries
from models.clock import WallClock
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.events import Event
from models.job.table import Job
from models.node.changes import settle_node
from models.node.states import NodeState
from models.node.table import Node
from models.notify import DIRECTIVE, notify
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.agents.test_streams import Listening, registered
from tests.live import MASTER_KEY, Place, ThreadedApi, Work, wait_for

ON = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 30}


def switch(sessions: Sessions, config: dict[str, Any]) -> None:
    with unit_of_work(sessions) as session:
        cluster = clusters.find(session, "c1", lock=True)
        if cluster.state is not ClusterState.IN_SERVICE:
            rows.settle_cluster(session, cluster, ClusterState.IN_SERVICE)
        case = UseCase(session, WallClock().now(), "us-east-1", Caller("123456789012", "ann"))
        operations.update(case, ClusterChange(cluster="c1", settings={"TieredStorageConfig": config}))


def serve(session: Session, place: Place) -> None:
    """The place's node has passed its checks."""
    node = session.get_one(Node, place.node_id)
    if node.state is NodeState.CHECKING:
        settle_node(session, node, NodeState.READY, why="Checks passed.", now=WallClock().now())


def named(sessions: Sessions, work: Work) -> str:
    with unit_of_work(sessions) as session:
        return rows.namespace(session, session.get_one(Job, work.job_id))


@contextmanager
def listening(api: ThreadedApi, token: str) -> Iterator[Listening]:
    stream = Listening(api, token)
    yield stream
    api.stop()
    stream.join()


def told(stream: Listening, within_s: float = 10.0) -> TierPlan:
    """The next plan; other lines are passed over."""
    while True:
        line = stream.directive(within_s)[1]
        if "memory_tier" in line:
            return TierPlan.from_wire(line["memory_tier"])


def test_the_plan_is_the_first_line_of_a_stream_and_holds_the_token_of_the_job_there(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions
):
    name = named(sessions, work)
    switch(sessions, ON)
    with listening(api, registered(api, place)) as stream:
        first = stream.directive()[1]
    plan = TierPlan.from_wire(first["memory_tier"])
    assert plan.allocation_percent == 30
    assert [(one.name, one.token) for one in plan.namespaces] == [(name, namespace_token(MASTER_KEY, name, work.job_id))]


def test_a_tier_is_switched_on_resized_and_off_on_a_running_cluster(api: ThreadedApi, place: Place, sessions: Sessions):
    with listening(api, registered(api, place)) as stream:
        for config, percent in ((ON, 30), ({"Mode": "Enable"}, 20), ({"Mode": "Disable"}, None)):
            switch(sessions, config)
            assert told(stream).allocation_percent == percent
    with sessions() as session:
        names = [event.description for event in session.query(Event).filter_by(name="memory tier switched")]
    assert names == [
        "The memory tier of cluster c1 takes 30 % of each node's memory.",
        "The memory tier of cluster c1 takes 20 % of each node's memory.",
        "The memory tier of cluster c1 is off; what its nodes hold is given back.",
    ]


def test_an_unchanged_plan_is_not_told_again(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    switch(sessions, ON)
    with listening(api, registered(api, place)) as stream:
        number = told(stream).number
        with unit_of_work(sessions) as session:
            notify(session, DIRECTIVE, place.node_id)
        with unit_of_work(sessions) as session:
            rows.durable(session, clusters.find(session, "c1"), "nobody's", 10)
        switch(sessions, ON | {"InstanceMemoryAllocationPercentage": 40})
        second = told(stream)
    assert (second.allocation_percent, second.number != number) == (40, True)


def test_a_new_peer_is_told_to_the_others_although_nobody_woke_them(api: ThreadedApi, place: Place, sessions: Sessions):
    switch(sessions, ON)
    with listening(api, registered(api, place)) as stream:
        assert told(stream).peers == ()
        with unit_of_work(sessions) as session:
            peer = rows.node(session, clusters.find(session, "c1"), number=7)
        assert [(one.node, one.address) for one in told(stream).peers] == [(peer.instance_id, "127.77.0.7")]


def test_reports_of_checkpoints_are_taken_in_once(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    token, name, now = registered(api, place), named(sessions, work), WallClock().now().timestamp()
    with unit_of_work(sessions) as session:
        serve(session, place)
    copies = tuple(CopyTold(index, CopyStatus.SEALED, 100, f"{index:032x}") for index in (0, 1))
    reports = [
        CopiesReport(name, 10, copies, save="s", world_size=1, at=now, written_at=now - 1),
        CopiesReport("a foreign client's", 10, copies, save="", world_size=1, at=now),
        DurableReport(name, 10, 1, 200, now, save="s"),
        TierReport(plan=5, allocated_bytes=1000, used_bytes=200, backlog_bytes=0, refusals=1, note="step 5 was evicted", at=now),
        SavedReport(work.job_id, 10, 0.1, 0.5, 100, memory_every=10, durable_every=50, why="because"),
    ]
    body = {"boot": "boot-a", "reports": [{"sequence": at, "report": report.to_wire()} for at, report in enumerate(reports)]}
    for _ in range(2):
        answer = api.post("/agent/v1/reports", body, token)
        assert (answer.status_code, answer.json()) == (200, {})
    with sessions() as session:
        newest = queries.newest(session, name)
        tier = queries.tier(session, place.node_id)
        namespace = queries.of_job(session, work.job_id)
        events = [event.name for event in session.query(Event)]
        assert queries.namespace(session, "a foreign client's") is None
    assert (newest.in_memory, newest.durable) == (10, 10)
    assert (tier.plan, tier.used_bytes, tier.note) == (5, 200, "step 5 was evicted")
    assert (namespace.memory_every, namespace.why) == (10, "because")
    assert [events.count(name) for name in ("memory tier", "memory tier full", "checkpoint interval")] == [1, 1, 1]


def test_a_saved_step_of_anothers_job_is_ignored(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    token = registered(api, place)
    with unit_of_work(sessions) as session:
        other = rows.job(session, clusters.find(session, "c1"), "other")
        name = rows.namespace(session, other)
    report = SavedReport(other.id, 10, 0.1, 0.5, 100, memory_every=1, durable_every=1).to_wire()
    assert (
        api.post("/agent/v1/reports", {"boot": "boot-a", "reports": [{"sequence": 1, "report": report}]}, token).status_code == 200
    )
    with sessions() as session:
        assert queries.namespace(session, name).memory_every is None


def test_the_first_shard_of_a_namespace_on_a_node_has_its_plan_name_it(api: ThreadedApi, place: Place, sessions: Sessions):
    switch(sessions, ON)
    token = registered(api, place)
    with unit_of_work(sessions) as session:
        serve(session, place)
        name = rows.namespace(session, rows.job(session, clusters.find(session, "c1"), "elsewhere"))
    with listening(api, token) as stream:
        assert told(stream).namespaces == ()
        report = CopiesReport(
            name, 10, (CopyTold(0, CopyStatus.SEALED, 1, "d"),), save="s", at=WallClock().now().timestamp()
        ).to_wire()
        api.post("/agent/v1/reports", {"boot": "boot-a", "reports": [{"sequence": 1, "report": report}]}, token)
        assert wait_for(lambda: [one.name for one in told(stream).namespaces]) == [name]
