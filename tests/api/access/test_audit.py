"""Every call that changes something, or was to, is in the audit log, with who and what and from where, and without what was sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from starlette.applications import Starlette
from starlette.requests import Request

from api.deps import Services, source_of
from api.operations.audit import Call
from models.clock import WallClock
from models.session import Sessions
from tests.api.access.conftest import Hold
from tests.api.access.holders import bootstrap, refused
from tests.api.serving import Server, group, settings_for

FILE = {"Command": ["python", "train.py"], "WorkingDir": "/code", "Replicas": 1, "Env": {"HF_TOKEN": "hf_very_secret"}}


def log_of(server: Server, **wanted: Any) -> list[dict[str, Any]]:
    with bootstrap(server) as admin:
        return admin.get("/v1/audit-events", params=wanted).raise_for_status().json()["AuditEvents"]


def test_a_call_is_entered_with_who_and_what_and_from_where(hold: Hold, server: Server):
    holder = hold("Operator", "red")
    answer = holder.sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    (entry,) = log_of(server, caller=holder.name)
    assert entry | {"EventId": "", "At": ""} == {
        "EventId": "",
        "At": "",
        "Service": "sagemaker",
        "Operation": "CreateCluster",
        "Outcome": "Done",
        "Caller": holder.name,
        "KeyId": holder.key_id,
        "Role": "operator",
        "Team": "red",
        "Source": "127.0.0.1",
        "RequestId": answer["ResponseMetadata"]["RequestId"],
        "Named": {"ClusterName": "c1"},
    }


def test_what_only_looks_is_not_entered(hold: Hold, server: Server):
    holder = hold("Operator")
    holder.sagemaker.list_clusters()
    refused(holder.sagemaker.describe_cluster, ClusterName="nothing")
    holder.rest.get("/v1/jobs")
    assert log_of(server, caller=holder.name) == []


@pytest.mark.parametrize("door", ["aws", "rest"])
def test_a_refused_call_is_entered_with_the_reason(hold: Hold, server: Server, door: str):
    viewer, operator = hold("Viewer"), hold("Operator")
    if door == "aws":
        refused(viewer.sagemaker.delete_cluster, ClusterName="c1")
        refused(operator.sagemaker.delete_cluster, ClusterName="c1")
        server.call("CreateCluster", {}, key_id=operator.key_id, secret=operator.secret)
    else:
        viewer.rest.delete("/v1/clusters/c1")
        operator.rest.delete("/v1/clusters/c1")
        operator.rest.post("/v1/clusters", json={})
    (by_viewer,) = log_of(server, caller=viewer.name)
    assert (by_viewer["Operation"], by_viewer["Outcome"], by_viewer["Named"]) == (
        "DeleteCluster",
        "Forbidden",
        {"ClusterName": "c1"},
    )
    second, first = log_of(server, caller=operator.name)
    assert (first["Operation"], first["Outcome"]) == ("DeleteCluster", "NotFound")
    assert (second["Operation"], second["Named"]) == ("CreateCluster", {})
    assert second["Outcome"] not in {"Done", "Forbidden"}


@pytest.mark.parametrize("name", ["a%00b", "%ff%fe", "%F0%9F%A6%A5", "x" * 2000])
def test_whatever_a_call_named_its_entry_can_be_written(hold: Hold, server: Server, name: str):
    holder = hold("Operator")
    for url in (f"/v1/clusters/{name}", f"/v1/faults/{name}"):
        assert holder.rest.delete(url).status_code in {400, 404, 422}
    entries = log_of(server, caller=holder.name)
    assert [entry["Operation"] for entry in entries] == ["ClearFault", "DeleteCluster"]
    assert all(len(word) <= 256 for entry in entries for word in entry["Named"].values())


def test_a_call_that_failed_left_its_entry_and_nothing_else(hold: Hold, server: Server, sessions: Sessions):
    holder = hold("Operator")
    twice = {"ClusterName": "c1", "InstanceGroups": [group(), group()]}
    refused(holder.sagemaker.create_cluster, **twice)
    with sessions() as session:
        assert session.scalar(text("SELECT count(*) FROM cluster")) == 0
    assert [entry["Outcome"] for entry in log_of(server, caller=holder.name)] == ["Invalid"]


@pytest.mark.parametrize("door", ["aws", "rest"])
def test_no_secret_and_nothing_of_a_body_is_entered(hold: Hold, server: Server, sessions: Sessions, door: str):
    holder = hold("Admin")
    holder.sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    job = {"Name": "j1", "Cluster": "c1", **FILE}
    if door == "aws":
        holder.everstep.submit_job(**job)
        made = holder.everstep.create_key(Name="ci")
        holder.everstep.rotate_key(KeyId=made["KeyId"])
    else:
        holder.rest.post("/v1/jobs", json=job).raise_for_status()
        made = holder.rest.post("/v1/keys", json={"Name": "ci"}).raise_for_status().json()
        holder.rest.post(f"/v1/keys/{made['KeyId']}/rotate", json={}).raise_for_status()
    entries = log_of(server, caller=holder.name)
    assert [entry["Operation"] for entry in entries] == ["RotateKey", "CreateKey", "SubmitJob", "CreateCluster"]
    assert [set(entry["Named"].values()) for entry in entries] == [{made["KeyId"]}, {"ci"}, {"j1", "c1"}, {"c1"}]
    with sessions() as session:
        stored = session.scalar(text("SELECT string_agg(e::text, '') FROM event e WHERE about = 'Call'"))
    for secret in ("hf_very_secret", "train.py", made["Secret"], holder.secret, holder.token):
        assert secret not in stored


def test_only_what_names_something_is_entered():
    asked = {
        "ClusterName": "c1",
        "NodeIds": ["i-1"],
        "Password": "x",
        "Env": {"A": "x"},
        "Command": ["x"],
        "Secret": "x",
        "Count": 3,
    }
    assert Call("sagemaker", "X", asked).named == {"ClusterName": "c1", "NodeIds": ["i-1"]}


def test_what_was_struck_and_what_was_ended_is_entered_too(hold: Hold, server: Server):
    holder = hold("Admin")
    refused(holder.everstep.inject_fault, Kind="kill-node", Target="i-0123")
    refused(holder.everstep.deprecate_image_release, Version="9.9.9")
    struck, ended = sorted(log_of(server, caller=holder.name), key=lambda entry: entry["Operation"], reverse=True)
    assert (struck["Named"], ended["Named"]) == ({"Target": "i-0123"}, {"Version": "9.9.9"})


def test_an_entry_is_short_whatever_a_call_invents():
    invented = {f"{number}-{'x' * 100_000}-id": "y" * 1000 for number in range(30)}
    named = Call("sagemaker", "X", invented | {f"{number}Name": "z" for number in range(100)}).named
    assert len(named) == 20
    assert len(str(named)) < 20 * 600


@pytest.mark.parametrize("door", ["aws", "rest", "own"])
def test_a_call_that_cannot_be_read_is_entered_after_its_caller_was_found_to_be_allowed_it(hold: Hold, server: Server, door: str):
    viewer, operator = hold("Viewer"), hold("Operator")
    answers = []
    for holder in (viewer, operator):
        keys = {"key_id": holder.key_id, "secret": holder.secret}
        if door == "aws":
            answers.append(server.call("CreateCluster", b"{", **keys).json()["__type"])
        else:
            path, kind = ("/v1/clusters", "text/plain") if door == "rest" else ("/v1/jobs", "application/json")
            answers.append(holder.rest.post(path, content=b"{", headers={"content-type": kind}).json()["code"])
    expected = {"aws": ("AccessDeniedException", "SerializationException"), "rest": ("Forbidden", "UnsupportedMediaType")}
    assert tuple(answers) == expected.get(door, ("Forbidden", "Invalid"))
    assert [entry["Outcome"] for entry in log_of(server, caller=viewer.name)] == ["Forbidden"]
    (entry,) = log_of(server, caller=operator.name)
    assert entry["Outcome"] == {"aws": "Unreadable", "rest": "UnsupportedMediaType", "own": "Invalid"}[door]


def test_an_admin_of_a_team_reads_the_teams_calls_only(hold: Hold, server: Server):
    red, blue = hold("Admin", "red"), hold("Admin", "blue")
    for holder in (red, blue):
        refused(holder.sagemaker.delete_cluster, ClusterName="nothing")
    seen = red.everstep.list_audit_events()["AuditEvents"]
    assert {entry["Team"] for entry in seen} == {"red"}
    assert refused(hold("Operator").everstep.list_audit_events)[0] == "AccessDeniedException"


def test_the_log_is_paged_newest_first_and_filtered(hold: Hold, server: Server):
    holder = hold("Admin")
    for number in range(5):
        refused(holder.sagemaker.delete_cluster, ClusterName=f"c{number}")
    pages = holder.everstep.get_paginator("list_audit_events").paginate(
        Caller=holder.name, Operation="DeleteCluster", PaginationConfig={"PageSize": 2}
    )
    found = [entry for page in pages for entry in page["AuditEvents"]]
    assert [entry["Named"]["ClusterName"] for entry in found] == ["c4", "c3", "c2", "c1", "c0"]
    middle = found[2]["At"]
    older = holder.everstep.list_audit_events(Caller=holder.name, Before=middle)["AuditEvents"]
    newer = holder.everstep.list_audit_events(Caller=holder.name, After=middle)["AuditEvents"]
    assert len(older) + len(newer) >= 3
    assert {entry["EventId"] for entry in older}.isdisjoint(entry["EventId"] for entry in newer)


def test_calls_are_no_events_of_clusters(hold: Hold):
    holder = hold("Operator")
    holder.sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], NodeProvisioningMode="Continuous")
    refused(holder.sagemaker.delete_cluster, ClusterName="nothing")
    told = holder.sagemaker.list_cluster_events(ClusterName="c1")["Events"]
    assert told
    assert "Call" not in {event["ResourceType"] for event in told}


@pytest.mark.parametrize(
    "trusted, forwarded, source",
    [
        (frozenset(), "203.0.113.7", "127.0.0.1"),
        (frozenset({"127.0.0.1"}), "203.0.113.7", "203.0.113.7"),
        (frozenset({"127.0.0.1"}), "198.51.100.1, 203.0.113.7", "203.0.113.7"),
        (frozenset({"127.0.0.1", "203.0.113.7"}), "198.51.100.1, 203.0.113.7", "198.51.100.1"),
        (frozenset({"127.0.0.1"}), None, "127.0.0.1"),
        (frozenset({"127.0.0.1"}), "x" * 500, "x" * 64),
    ],
)
def test_a_source_is_believed_as_far_as_proxies_are_trusted(
    forwarding, trusted: frozenset[str], forwarded: str | None, source: str
):
    assert forwarding(trusted, forwarded) == source


@pytest.mark.parametrize("door", ["aws", "rest"])
def test_nobody_says_himself_where_he_calls_from(hold: Hold, server: Server, door: str):
    holder = hold("Operator")
    headers = {"x-forwarded-for": "203.0.113.7"}
    if door == "aws":
        server.call("DeleteCluster", {"ClusterName": "x"}, key_id=holder.key_id, secret=holder.secret, headers=headers)
    else:
        holder.rest.delete("/v1/clusters/x", headers=headers)
    assert [entry["Source"] for entry in log_of(server, caller=holder.name)] == ["127.0.0.1"]


@pytest.mark.parametrize("name", ["Dockerfile", "docker-compose.yml", "everstep/embedded/stack.py"])
def test_the_server_itself_believes_no_proxy_wherever_it_is_started(name: str):
    text = (Path(__file__).parents[3] / name).read_text()
    assert text.count("api.app:create_app") == text.count("--no-proxy-headers") == 1


@pytest.fixture
def forwarding():
    """The source of a request that came from 127.0.0.1, with this header."""

    def source(trusted: frozenset[str], forwarded: str | None) -> str | None:
        app = Starlette()
        settings = dataclasses.replace(settings_for(""), trusted_proxies=trusted)
        app.state.services = Services(settings, None, WallClock())  # type: ignore[arg-type]
        headers = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode())]
        return source_of(Request({"type": "http", "app": app, "headers": headers, "client": ("127.0.0.1", 4711)}))

    return source
