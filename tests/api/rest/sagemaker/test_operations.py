"""SageMaker's operations in REST: the same rules as in AWS's JSON, with REST's own manners."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from api.aws.schema import sagemaker as model
from api.aws.table.refusals import REFUSALS
from api.aws.table.sagemaker import SAGEMAKER
from api.rest.sagemaker_routes import ROUTES
from models.cluster.queries import find, groups
from models.cluster.states import ClusterState, GroupState
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.serving import KEY_ID, SECRET, TOKEN, Server, group

Call = Callable[..., httpx.Response]
NAMES = {"ClusterName": "c1", "InstanceGroups": [group()]}


@pytest.fixture
def call(server: Server) -> Iterator[Call]:
    client = httpx.Client(base_url=server.url, timeout=20.0, verify=False)

    def call(method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {TOKEN}"} | more.pop("headers", {})
        return client.request(method, path, headers=headers, **more)

    yield call
    client.close()


@pytest.fixture
def cluster(call: Call) -> str:
    """The ARN of a cluster that is being created."""
    return str(call("POST", "/v1/clusters", json=NAMES).json()["ClusterArn"])


def serve(sessions: Sessions, name: str = "c1") -> None:
    """The cluster is in service: it may be changed."""
    with unit_of_work(sessions) as session:
        found = find(session, name, lock=True)
        for each in groups(session, found.id):
            if each.state is not GroupState.IN_SERVICE:
                rows.settle_group(session, found, each, GroupState.IN_SERVICE)
        rows.settle_cluster(session, found, ClusterState.IN_SERVICE)


# ------------------------------------------------------------------------------------------------------ the table of routes


def test_every_operation_that_is_served_has_a_route() -> None:
    """Add the new operation's path to api/rest/sagemaker_routes.py."""
    assert set(SAGEMAKER) - set(REFUSALS) - {route.operation for route in ROUTES} == set()


def test_no_two_routes_are_the_same_and_no_two_have_one_name() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.id for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.operation in model().operation_names], ids=lambda route: route.id
)
def test_a_route_fits_the_shapes_of_its_operation(route: Any) -> None:
    operation = model().operation_model(route.operation)
    taken = operation.input_shape.members
    assert set(route.in_path) <= set(taken)
    has_answer = operation.output_shape is not None and bool(operation.output_shape.members)
    assert has_answer == (route.status != 204)
    if not route.has_body:
        kinds = {taken[name].type_name for name in taken if name not in route.in_path}
        assert not kinds & {"structure", "map"}, "a query holds simple values"


# ------------------------------------------------------------------------------------------------------- requests and answers


def test_a_cluster_is_made_shown_listed_changed_and_deleted(call: Call, sessions: Sessions) -> None:
    made = call("POST", "/v1/clusters", json=NAMES)
    assert (made.status_code, list(made.json())) == (201, ["ClusterArn"])
    serve(sessions)
    shown = call("GET", "/v1/clusters/c1").json()
    assert shown["InstanceGroups"][0]["TargetCount"] == 2
    assert shown["CreationTime"].endswith("Z")
    assert [row["ClusterName"] for row in call("GET", "/v1/clusters").json()["ClusterSummaries"]] == ["c1"]
    assert call("PATCH", "/v1/clusters/c1", json={"InstanceGroups": [group(count=3)]}).status_code == 202
    assert call("GET", "/v1/clusters/c1").json()["InstanceGroups"][0]["TargetCount"] == 3
    serve(sessions)
    assert call("DELETE", "/v1/clusters/c1").status_code == 202
    assert call("GET", "/v1/clusters/c1").json()["ClusterStatus"] == "Deleting"


def test_an_answer_is_that_of_the_other_door_but_for_its_times(call: Call, cluster: str, server: Server) -> None:
    rest, aws = call("GET", "/v1/clusters/c1").json(), server.call("DescribeCluster", {"ClusterName": "c1"}).json()
    assert isinstance(rest.pop("CreationTime"), str)
    assert isinstance(aws.pop("CreationTime"), float)
    assert rest == aws


def test_an_arn_in_a_path_is_taken_percent_encoded_and_explained_otherwise(call: Call, cluster: str) -> None:
    assert call("GET", f"/v1/clusters/{quote(cluster, safe='')}").json()["ClusterName"] == "c1"
    plain = call("GET", f"/v1/clusters/{cluster}")
    assert (plain.status_code, "%2F" in plain.json()["detail"]) == (404, True)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_signed_request_is_taken_whatever_its_path_and_query_hold(server: Server, cluster: str, method: str) -> None:
    url = f"{server.url}/v1/clusters/{quote(cluster, safe='')}/nodes?InstanceGroupNameContains=work&max_results=5"
    request = AWSRequest(method, url, headers={"host": server.url.removeprefix("http://")})
    SigV4Auth(Credentials(KEY_ID, SECRET), "everstep", "us-east-1").add_auth(request)
    assert httpx.request(method, url, headers=dict(request.headers), verify=False).status_code == 200


def test_names_in_a_query_are_taken_in_snake_case_too_and_pages_go_on(call: Call) -> None:
    for name in ("a", "b", "c"):
        call("POST", "/v1/clusters", json=NAMES | {"ClusterName": name})
    first = call("GET", "/v1/clusters", params={"sort_by": "NAME", "max_results": 2}).json()
    rest = call("GET", "/v1/clusters", params={"SortBy": "NAME", "MaxResults": 2, "NextToken": first["NextToken"]}).json()
    assert [row["ClusterName"] for row in first["ClusterSummaries"] + rest["ClusterSummaries"]] == ["a", "b", "c"]
    assert "NextToken" not in rest
    other = call("GET", "/v1/clusters", params={"sort_by": "NAME", "sort_order": "Descending", "next_token": first["NextToken"]})
    assert other.status_code == 422


def test_times_in_a_query_may_be_text_or_seconds(call: Call, cluster: str) -> None:
    for past, future in (("2001-01-01T00:00:00Z", "2101-01-01T00:00:00Z"), ("978307200", "4133980800")):
        found = [call("GET", "/v1/clusters", params={"CreationTimeAfter": at}).json()["ClusterSummaries"] for at in (past, future)]
        assert [len(rows_) for rows_ in found] == [1, 0]


def test_tags_are_set_listed_and_deleted_by_a_list_in_the_query(call: Call, cluster: str) -> None:
    path = f"/v1/tags/{quote(cluster, safe='')}"
    tags = [{"Key": name, "Value": "1"} for name in ("a", "b", "c")]
    assert call("POST", path, json={"Tags": tags}).json()["Tags"] == tags
    assert call("DELETE", path, params=[("tag_keys", "a"), ("TagKeys", "c")]).status_code == 204
    assert call("GET", path).json()["Tags"] == [tags[1]]


# ----------------------------------------------------------------------------------------------------------------- refusals


def test_every_violation_is_listed_by_its_member(call: Call) -> None:
    answer = call("POST", "/v1/clusters", json={"ClusterName": "-", "InstanceGroups": [group(), group(count=-1)], "Flavour": 1})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert [found["member"] for found in answer.json()["violations"]] == [
        "ClusterName",
        "InstanceGroups[1].InstanceCount",
        "Flavour",
    ]


@pytest.mark.parametrize(
    "method, path, more, status",
    [
        ("GET", "/v1/clusters/nothing", {}, 404),
        ("GET", "/v1/clusters", {"params": {"MaxResults": "many"}}, 400),
        ("GET", "/v1/clusters", {"params": {"MaxResults": "101"}}, 422),
        ("GET", "/v1/clusters", {"params": {"Flavour": "x"}}, 422),
        ("GET", "/v1/clusters", {"params": [("SortBy", "NAME"), ("sort_by", "NAME")]}, 422),
        ("GET", "/v1/clusters?%zz", {}, 400),
        ("GET", "/v1/clusters", {"content": b"{}"}, 422),
        ("POST", "/v1/clusters?SortBy=NAME", {"json": NAMES}, 422),
        ("POST", "/v1/clusters", {"content": b"{"}, 400),
        ("POST", "/v1/clusters", {"content": b"[]"}, 400),
        ("POST", "/v1/clusters", {"json": NAMES | {"InstanceGroups": "x"}}, 400),
        ("POST", "/v1/clusters", {"content": b"a=1", "headers": {"content-type": "application/x-www-form-urlencoded"}}, 415),
        ("POST", "/v1/clusters", {"content": b'{"ClusterName": "' + b"x" * 5_000_000 + b'"}'}, 413),
        ("PATCH", "/v1/clusters/c1", {"json": {"ClusterName": "c1"}}, 422),
        ("PATCH", "/v1/clusters/c1", {"json": {}, "headers": {"if-match": "nonsense"}}, 422),
        ("POST", "/v1/clusters", {"json": NAMES, "headers": {"idempotency-key": "x" * 256}}, 422),
        ("GET", "/v1/clusters", {"headers": {"authorization": "Bearer nobody"}}, 401),
        ("GET", "/v1/clusters/", {}, 404),
    ],
)
def test_what_is_wrong_is_a_problem_with_the_right_status(
    call: Call, cluster: str, method: str, path: str, more: dict[str, Any], status: int
) -> None:
    answer = call(method, path, **more)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    "line, body",
    [
        ("GET /v1/clusters/%00", b""),
        ("GET /v1/clusters/%ff%fe", b""),
        ("GET /v1/clusters/..%2F..", b""),
        ("GET /v1/clusters?NameContains=%ed%a0%80", b""),
        ("GET /v1/clusters?CreationTimeAfter=1e400", b""),
        ("DELETE /v1/tags/x?" + "&".join(["TagKeys=a"] * 1200), b""),
        ("POST /v1/clusters", b'{"a":' * 100_000),
        ("POST /v1/clusters", b'{"ClusterName":"a\\u0000b"}'),
        ("POST /v1/clusters", b"\xff\xfe"),
        ("PATCH /v1/compute-quotas/%00", b"{}"),
        ("GET /v1/events?follow=true&after=99999999999999999999-1", b""),
    ],
)
def test_what_no_client_would_send_is_refused_and_no_fault_of_ours(server: Server, line: str, body: bytes) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = [f"{line} HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", f"Content-Length: {len(body)}", "Connection: close"]
    with socket.create_connection((host, int(port)), timeout=10.0) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        status = int(connection.makefile("rb").readline().split()[1])
    assert 400 <= status < 500


def test_a_name_that_is_taken_and_a_cluster_that_is_busy_are_conflicts(call: Call, cluster: str) -> None:
    assert call("POST", "/v1/clusters", json=NAMES).status_code == 409
    assert call("DELETE", "/v1/clusters/c1").status_code == 409


def test_other_methods_are_told_which_are_allowed(call: Call, cluster: str) -> None:
    answer = call("PUT", "/v1/clusters/c1")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, OPTIONS, PATCH")
    assert call("PUT", "/v1/jobs").headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert call("OPTIONS", "/v1/keys").headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert call("HEAD", "/v1/jobs").status_code == 200
    assert call("OPTIONS", "/v1/clusters", headers={"authorization": ""}).status_code == 204
    head, get = call("HEAD", "/v1/clusters/c1"), call("GET", "/v1/clusters/c1")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", get.headers["etag"])


def test_every_answer_has_an_id_of_its_request(call: Call) -> None:
    ids = {call("GET", path).headers["x-request-id"] for path in ("/v1/clusters", "/v1/nothing", "/v1/clusters/x", "/v1/jobs")}
    assert len(ids) == 4


# --------------------------------------------------------------------------------------------------------------- conditions


def etag(call: Call, path: str = "/v1/clusters/c1") -> str:
    return str(call("GET", path).headers["etag"])


def test_an_etag_changes_when_what_was_asked_for_changes_and_not_before(call: Call, cluster: str, sessions: Sessions) -> None:
    first = etag(call)
    with unit_of_work(sessions) as session:
        rows.node(session, find(session, "c1"))
    serve(sessions)
    assert call("GET", "/v1/clusters/c1").json()["InstanceGroups"][0]["CurrentCount"] == 1
    assert etag(call) == first
    call("PATCH", "/v1/clusters/c1", json={"InstanceGroups": [group(count=2)]})
    assert etag(call) == first, "an update that changes nothing"
    call("PATCH", "/v1/clusters/c1", json={"InstanceGroups": [group(count=3)]})
    second = etag(call)
    assert second != first
    serve(sessions)
    call("PATCH", "/v1/clusters/c1", json={"NodeRecovery": "None"})
    third = etag(call)
    assert third not in {first, second}
    serve(sessions)
    call("PATCH", "/v1/clusters/c1", json={"NodeRecovery": "None", "InstanceGroups": [group(count=3), group("more", 0)]})
    assert etag(call) not in {first, second, third}


def test_what_has_not_changed_is_not_sent_again(call: Call, cluster: str) -> None:
    held = etag(call)
    for header in (held, f'"other", W/{held}', "*"):
        answer = call("GET", "/v1/clusters/c1", headers={"if-none-match": header})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", held)
    assert call("GET", "/v1/clusters/c1", headers={"if-none-match": '"other"'}).status_code == 200


def test_a_change_on_an_outdated_view_is_refused_and_changes_nothing(call: Call, cluster: str, sessions: Sessions) -> None:
    serve(sessions)
    held = etag(call)
    change = {"InstanceGroups": [group(count=3)]}
    assert call("PATCH", "/v1/clusters/c1", json=change, headers={"if-match": held}).status_code == 202
    serve(sessions)
    answer = call("PATCH", "/v1/clusters/c1", json={"InstanceGroups": [group(count=9)]}, headers={"if-match": held})
    assert (answer.status_code, etag(call) in answer.json()["detail"]) == (412, True)
    assert call("DELETE", "/v1/clusters/c1", headers={"if-match": held}).status_code == 412
    assert call("GET", "/v1/clusters/c1").json()["InstanceGroups"][0]["TargetCount"] == 3
    assert call("DELETE", "/v1/clusters/c1", headers={"if-match": etag(call)}).status_code == 202


def test_of_changes_that_rest_on_the_same_view_exactly_one_is_made(call: Call, sessions: Sessions) -> None:
    call("POST", "/v1/clusters", json=NAMES | {"NodeProvisioningMode": "Continuous"})
    serve(sessions)
    held, statuses = etag(call), []

    def change(count: int) -> None:
        body = {"InstanceGroups": [group(count=count)]}
        statuses.append(call("PATCH", "/v1/clusters/c1", json=body, headers={"if-match": held}).status_code)

    threads = [threading.Thread(target=change, args=(count,)) for count in range(3, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [202] + [412] * 5


def test_quotas_and_scheduler_configurations_have_etags_of_their_versions(call: Call, cluster: str) -> None:
    config = {"PriorityClasses": [{"Name": "training", "Weight": 10}]}
    made = call("POST", "/v1/scheduler-configs", json={"Name": "s", "ClusterArn": cluster, "SchedulerConfig": config})
    assert made.status_code == 201, made.text
    path = f"/v1/scheduler-configs/{made.json()['ClusterSchedulerConfigId']}"
    held = etag(call, path)
    change = {"TargetVersion": 1, "Description": "new"}
    assert call("PATCH", path, json=change, headers={"if-match": held}).status_code == 200
    assert etag(call, path) != held
    assert call("PATCH", path, json=change | {"TargetVersion": 2}, headers={"if-match": held}).status_code == 412
    old = call("GET", path, params={"ClusterSchedulerConfigVersion": 1}, headers={"if-none-match": etag(call, path)})
    assert (old.status_code, "etag" in old.headers) == (200, False)
    assert call("DELETE", path, headers={"if-match": held}).status_code == 412
    assert call("DELETE", path, headers={"if-match": etag(call, path)}).status_code == 204
    assert call("GET", path).status_code == 404


# ----------------------------------------------------------------------------------------------------------- idempotency keys


def test_a_repeated_request_with_its_key_is_answered_as_the_first_one(call: Call) -> None:
    key = {"headers": {"idempotency-key": "k1"}}
    first, second = (call("POST", "/v1/clusters", json=NAMES, **key) for _ in range(2))
    assert (first.status_code, second.status_code, first.json()) == (201, 201, second.json())
    assert ("idempotency-replayed" in first.headers, second.headers["idempotency-replayed"]) == (False, "true")
    other = call("POST", "/v1/clusters", json=NAMES | {"ClusterName": "c2"}, **key)
    assert (other.status_code, "k1" in other.json()["detail"]) == (422, True)
    assert len(call("GET", "/v1/clusters").json()["ClusterSummaries"]) == 1


def test_a_request_that_failed_may_use_its_key_again(call: Call, cluster: str, sessions: Sessions) -> None:
    key = {"headers": {"idempotency-key": "k1"}}
    assert call("DELETE", "/v1/clusters/c1", **key).status_code == 409
    serve(sessions)
    assert [call("DELETE", "/v1/clusters/c1", **key).status_code for _ in range(2)] == [202, 202]


def test_a_deletion_that_answers_nothing_is_repeated_too(call: Call, cluster: str) -> None:
    path, key = f"/v1/tags/{quote(cluster, safe='')}?TagKeys=a", {"headers": {"idempotency-key": "k1"}}
    answers = [call("DELETE", path, **key) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 2


def test_of_equal_requests_at_the_same_time_one_is_carried_out(call: Call) -> None:
    answers: list[httpx.Response] = []
    key = {"headers": {"idempotency-key": "k1"}}
    threads = [threading.Thread(target=lambda: answers.append(call("POST", "/v1/clusters", json=NAMES, **key))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {201}
    assert len({json.dumps(answer.json()) for answer in answers}) == 1


def test_the_document_is_served_as_it_is_checked_in(call: Call) -> None:
    answer = call("GET", "/openapi.json", headers={"authorization": ""})
    assert answer.json()["paths"]["/v1/clusters/{ClusterName}"]["patch"]["operationId"] == "UpdateCluster"
