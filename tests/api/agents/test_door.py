"""Registration, beats and reports, over real HTTP, on a real database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from api.agents import errors
from api.operations import agents, reports
from models import errors as domain
from models.clock import WallClock
from models.cluster.table import Cluster, InstanceGroup
from models.events import Event
from models.job.states import ProcessState
from models.job.table import Job, JobProcess, Step
from models.node import queries as nodes
from models.node.changes import settle_node, settle_unwanted
from models.node.states import NodeState
from models.node.table import Node
from models.node.wishes import request_reimage, settle_restart
from models.pulse import listening_since
from models.session import Sessions, unit_of_work
from tests import rows
from tests.live import Place, ThreadedApi, Work, wait_for

Look = Callable[[str], Node]
LIFECYCLE = {"kind": "lifecycle", "exit_code": 0, "seconds": 0.0}


def registered(api: ThreadedApi, place: Place, **changes: Any) -> str:
    """Registers and returns the node token."""
    answer = api.post("/agent/v1/register", place.registration(**changes))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["node_token"])


def tell(api: ThreadedApi, token: str, *reports: dict[str, Any], boot: str = "boot-a", first: int = 1) -> Any:
    body = {"boot": boot, "reports": [{"sequence": first + at, "report": report} for at, report in enumerate(reports)]}
    return api.post("/agent/v1/reports", body, token)


def process_report(work: Work, status: str, **facts: Any) -> dict[str, Any]:
    return {"kind": "process", "job": work.job_id, "process": work.process_id, "status": status} | facts


def progress(work: Work, *steps: int) -> dict[str, Any]:
    told = [{"step": step, "seconds": 0.5, "at": 1_900_000_000.0 + step, "loss": 4.0 - step} for step in steps]
    return {"kind": "progress", "job": work.job_id, "generation": 1, "steps": told}


def process_of(sessions: Sessions, work: Work) -> JobProcess:
    with sessions() as session:
        return session.get_one(JobProcess, work.process_id)


@pytest.mark.parametrize(
    "path, member, body",
    [
        ("/agent/v1/beat", "sequence", {"boot": "boot-a", "sequence": 2**63}),
        ("/agent/v1/reports", "reports[0].sequence", {"boot": "boot-a", "reports": [{"sequence": 2**63, "report": LIFECYCLE}]}),
    ],
)
def test_a_number_that_no_row_holds_is_refused_by_name_before_it_can_hold_up_others(
    api: ThreadedApi, place: Place, path: str, member: str, body: dict[str, Any]
):
    """One such beat in the buffer would fail the statement that writes everybody's, again and again."""
    answer = api.post(path, body, registered(api, place))
    assert (answer.status_code, answer.json()["member"]) == (400, member)


def start_anew(sessions: Sessions, place: Place) -> None:
    """The node serves, and is then to start once more, from an image."""
    now = WallClock().now()
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id, lock=True)
        settle_node(session, node, NodeState.READY, why="Checks passed.", now=now)
        request_reimage(session, node, image="2.0.0", why="a test", now=now)
        settle_node(session, node, NodeState.DRAINING, why="Asked for.", now=now)
        settle_restart(session, node, why="Drained.", now=now)


def test_a_boot_token_is_good_again_for_the_start_that_was_asked_for_and_no_other(
    api: ThreadedApi, place: Place, sessions: Sessions, look: Look
):
    registered(api, place)
    start_anew(sessions, place)
    for start in (0, 2):
        refused = api.post("/agent/v1/register", place.registration(boot="boot-b", start=start))
        assert refused.status_code == 401, start
    registered(api, place, boot="boot-b", start=1)
    assert look(place.node_id).state is NodeState.CHECKING
    assert api.post("/agent/v1/register", place.registration(boot="boot-c", start=1)).status_code == 401


def test_an_agent_that_only_crashed_does_not_pass_for_one_of_the_next_start(
    api: ThreadedApi, place: Place, sessions: Sessions, look: Look
):
    token = registered(api, place)
    start_anew(sessions, place)
    registered(api, place, boot="boot-b", token=token)
    assert look(place.node_id).state is NodeState.UPDATING


def test_a_port_that_is_none_is_no_reason_to_register_again_for_ever(api: ThreadedApi, place: Place):
    answer = api.post("/agent/v1/register", place.registration(rendezvous_port=2**31))
    assert (answer.status_code, answer.json()["member"]) == (400, "rendezvous_port")


def test_the_door_says_that_it_listens(api: ThreadedApi, sessions: Sessions):
    def said() -> bool:
        with sessions() as session:
            return listening_since(session, now=WallClock().now()) is not None

    wait_for(said, 5.0)


def test_a_node_registers_with_its_boot_token_and_is_checked(api: ThreadedApi, place: Place, look: Look):
    registered(api, place)
    node = look(place.node_id)
    assert node.state is NodeState.CHECKING
    assert node.rendezvous_port == 4000
    assert node.facts["vcpus"] == 2


def test_the_answer_to_a_registration_may_be_lost_and_asked_for_again(api: ThreadedApi, place: Place):
    registered(api, place)
    token = registered(api, place)
    assert api.post("/agent/v1/beat", {"boot": "boot-a", "sequence": 1}, token).status_code == 200


def test_a_boot_token_that_another_boot_has_used_up_is_refused(api: ThreadedApi, place: Place):
    registered(api, place)
    assert api.post("/agent/v1/register", place.registration(boot="boot-b")).status_code == 401


def test_a_restarted_agent_registers_with_its_node_token_as_often_as_it_must(api: ThreadedApi, place: Place):
    token = registered(api, place)
    assert registered(api, place, boot="boot-b", token=token) == token
    assert registered(api, place, boot="boot-b", token=token) == token


@pytest.mark.parametrize("changes", [{"token": "wrong"}, {"instance_id": "i-00000000000000099"}, {"token": "ünïcode"}])
def test_wrong_tokens_and_unknown_instances_are_refused(api: ThreadedApi, place: Place, changes: dict[str, str]):
    assert api.post("/agent/v1/register", place.registration(**changes)).status_code == 401


def test_the_agent_of_a_node_that_is_gone_is_told_so_at_every_path(api: ThreadedApi, place: Place, sessions: Sessions):
    token = registered(api, place)
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id)
        settle_unwanted(session, node, why="test", now=rows.NOW)
        settle_node(session, node, NodeState.RELEASING, why="test", now=rows.NOW)
        settle_node(session, node, NodeState.GONE, why="test", now=rows.NOW)
    assert api.post("/agent/v1/register", place.registration(token=token)).status_code == 410
    assert tell(api, token).status_code == 410


def test_the_lifecycle_script_is_named_until_it_has_run(api: ThreadedApi, place: Place, sessions: Sessions):
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id)
        group = session.get_one(InstanceGroup, node.group_id)
        group.spec = group.spec | {"LifeCycleConfig": {"SourceS3Uri": "s3://b/scripts", "OnCreate": "on_create.sh"}}
    first = api.post("/agent/v1/register", place.registration()).json()
    assert (first["lifecycle_uri"], first["lifecycle_script"]) == ("s3://b/scripts", "on_create.sh")
    tell(api, first["node_token"], {"kind": "lifecycle-started", "script": "on_create.sh"})
    tell(api, first["node_token"], {"kind": "lifecycle", "exit_code": 0, "seconds": 1.5}, first=2)
    with sessions() as session:
        told = session.scalars(select(Event.description).where(Event.name == "lifecycle started")).all()
    assert told == ["Lifecycle script on_create.sh started."]
    again = api.post("/agent/v1/register", place.registration(token=first["node_token"], boot="boot-b")).json()
    assert "lifecycle_uri" not in again


def test_a_beat_is_written_soon_and_survives_a_shutdown(api: ThreadedApi, place: Place, look: Look):
    token = registered(api, place)
    answer = api.post("/agent/v1/beat", {"boot": "boot-a", "sequence": 7}, token)
    assert answer.json()["next_s"] > 0
    wait_for(lambda: look(place.node_id).beat_sequence == 7, 2.0)
    api.post("/agent/v1/beat", {"boot": "boot-a", "sequence": 8}, token)
    api.stop()
    assert look(place.node_id).beat_sequence == 8


def test_a_beat_of_an_older_boot_or_sequence_changes_nothing(api: ThreadedApi, place: Place, look: Look):
    token = registered(api, place)
    api.post("/agent/v1/beat", {"boot": "boot-a", "sequence": 9}, token)
    wait_for(lambda: look(place.node_id).beat_sequence == 9)
    api.post("/agent/v1/beat", {"boot": "boot-a", "sequence": 3}, token)
    api.post("/agent/v1/beat", {"boot": "boot-0", "sequence": 99}, token)
    api.stop()
    assert look(place.node_id).beat_sequence == 9


def test_reports_are_stored_once_however_often_they_are_sent(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions, look: Look
):
    token = registered(api, place)
    reports = (process_report(work, "started", pid=42), process_report(work, "ready"), progress(work, 0, 1))
    for _ in range(3):
        assert tell(api, token, *reports).status_code == 200
    with sessions() as session:
        assert session.get_one(JobProcess, work.process_id).state is ProcessState.READY
        assert session.get_one(JobProcess, work.process_id).pid == 42
        assert session.get_one(Job, work.job_id).productive_s == 1.0
        assert session.query(Step).count() == 2
    assert look(place.node_id).report_sequence == 3


@pytest.mark.parametrize(
    "broken, member",
    [
        ({"kind": "process", "job": "j", "process": "p", "status": "sleeping"}, "reports[1].report.status"),
        ({"kind": "process", "job": "j", "process": "p", "status": "exited", "exit_code": "1"}, "reports[1].report.exit_code"),
        ({"kind": "process", "job": "j", "process": "p", "status": "exited", "exit_code": True}, "reports[1].report.exit_code"),
        ({"kind": "process", "job": "j", "status": "exited"}, "reports[1].report.process"),
        ({"kind": "gossip"}, "reports[1].report"),
        ({}, "reports[1].report"),
        ({"kind": "progress", "job": "j", "generation": 1, "steps": [{"step": 1, "seconds": 1}]}, "reports[1].report.steps[0].at"),
    ],
)
def test_a_malformed_report_is_named_and_nothing_of_its_batch_is_written(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions, broken: dict[str, Any], member: str
):
    token = registered(api, place)
    answer = tell(api, token, process_report(work, "started", pid=1), broken)
    assert answer.status_code == 400
    assert answer.json()["member"] == member
    assert answer.json()["index"] == 1
    assert process_of(sessions, work).state is ProcessState.WANTED
    assert tell(api, token, process_report(work, "started", pid=1)).status_code == 200


def test_a_report_that_the_database_cannot_hold_is_named(api: ThreadedApi, place: Place, work: Work):
    token = registered(api, place)
    answer = tell(api, token, process_report(work, "started"), process_report(work, "exited", exit_code=2**40))
    assert (answer.status_code, answer.json()["index"]) == (400, 1)


def test_nul_characters_in_a_log_are_replaced(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    token = registered(api, place)
    assert tell(api, token, process_report(work, "exited", exit_code=1, tail="a\0b")).status_code == 200
    assert process_of(sessions, work).tail == "a\ufffdb"


def test_a_node_cannot_speak_of_processes_that_were_never_placed_on_it(
    api: ThreadedApi, place: Place, work: Work, sessions: Sessions
):
    with unit_of_work(sessions) as session:
        other = rows.node(session, session.get_one(Cluster, nodes.get(session, place.node_id).cluster_id), number=2)
    with unit_of_work(sessions) as session:
        session.get_one(JobProcess, work.process_id).node_id = other.id
    token = registered(api, place)
    assert tell(api, token, process_report(work, "exited", exit_code=1)).status_code == 200
    assert process_of(sessions, work).state is ProcessState.WANTED


def test_reports_of_an_older_boot_are_refused(api: ThreadedApi, place: Place, work: Work):
    token = registered(api, place)
    registered(api, place, boot="boot-b", token=token)
    assert tell(api, token, process_report(work, "started"), boot="boot-a").status_code == 409


def test_what_a_restarted_agent_does_not_find_has_exited(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    token = registered(api, place)
    tell(api, token, process_report(work, "started", pid=1))
    registered(api, place, token=token)
    assert process_of(sessions, work).state is ProcessState.STARTED, "the same boot tells of exits itself"
    registered(api, place, token=token, boot="boot-b")
    assert process_of(sessions, work).state is ProcessState.EXITED


def test_what_a_restarted_agent_lists_is_believed(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    token = registered(api, place)
    tell(api, token, process_report(work, "started", pid=1))
    inventory = [process_report(work, "exited", exit_code=3)]
    registered(api, place, token=token, boot="boot-b", processes=inventory)
    process = process_of(sessions, work)
    assert (process.state, process.exit_code) == (ProcessState.EXITED, 3)


def test_a_process_that_is_wanted_and_not_yet_started_is_not_missed(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    registered(api, place)
    assert process_of(sessions, work).state is ProcessState.WANTED


def test_bodies_that_are_no_json_or_too_long_are_refused(api: ThreadedApi, place: Place):
    token = registered(api, place)
    assert api.post("/agent/v1/reports", b"{", token).status_code == 400
    assert api.post("/agent/v1/reports", b" " * 5_000_000, token).status_code == 413
    assert api.post("/agent/v1/reports", {"boot": "boot-a", "reports": []}).status_code == 401


def test_every_error_of_the_domain_has_a_status_at_this_door():
    kinds = [kind for kind in vars(domain).values() if isinstance(kind, type) and issubclass(kind, domain.DomainError)]
    for kind in [*kinds, agents.NodeGone, agents.OtherBoot, reports.BadReport]:
        assert any(ancestor in errors.STATUSES for ancestor in kind.__mro__)
    assert errors.STATUSES[agents.NodeGone] == 410
