"""The table of own operations, and that everything which follows from it has all of it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore import xform_name
from botocore.model import ServiceModel
from fastapi.routing import APIRoute

import everstep
from api import openapi
from api.auth import need_of
from api.aws import service_model
from api.aws.service_shapes import Clash, Shapes
from api.own.kinds import Own
from api.own.table import OWN
from api.own.wire import Asked, Wire
from api.rest import own as rest
from models.access.states import Role

KEYS = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
MODEL = ServiceModel(service_model.service(), "everstep")
EACH = pytest.mark.parametrize("own", OWN, ids=lambda own: own.name)


@pytest.fixture(scope="module")
def client() -> Any:
    return everstep.client("everstep", endpoint_url="http://127.0.0.1:1", **KEYS)


@EACH
def test_a_time_without_an_offset_is_taken_as_utc_as_at_the_json_door(own: Own):
    times = [name for name, member in own.takes.model_fields.items() if "datetime" in str(member.annotation)]
    for name in times:
        asked: Any = own.takes.model_validate({name: "2031-01-01T00:00:00"})
        assert getattr(asked, name) == datetime(2031, 1, 1, tzinfo=UTC)
    assert bool(times) == (own.name in {"GetSpotSavings", "ListAuditEvents"}), "the only ones that take times so far"


@EACH
def test_an_operation_of_the_table_is_in_rest_the_model_the_document_and_the_client(own: Own, client: Any):
    [route] = [found for found in rest.router.routes if isinstance(found, APIRoute) and found.operation_id == own.name]
    assert (route.path, route.methods, route.status_code) == (own.path, {own.method}, own.status)
    described = openapi.control_plane()["paths"][own.path][own.method.lower()]
    assert described["operationId"] == own.name
    assert own.name in MODEL.operation_names
    assert hasattr(client, xform_name(own.name))
    assert client.can_paginate(xform_name(own.name)) == (own.page_of is not None)


@EACH
def test_an_operation_takes_only_what_it_knows_and_says_what_it_does(own: Own):
    assert own.takes.model_config["extra"] == "forbid"
    assert set(own.in_path) <= set(own.takes.model_fields)
    assert own.description.endswith(".")
    assert re.fullmatch(r"[A-Z]\w+", own.name)
    assert (own.method == "GET") == own.name.startswith(("Describe", "List", "Get")), "clients may repeat a GET"
    assert need_of(own.name) is not Role.VIEWER or own.method == "GET"


@EACH
def test_an_operation_that_pages_has_the_members_of_paging(own: Own):
    if own.page_of is not None:
        assert {"next_token", "max_results"} <= set(own.takes.model_fields)
        assert {"next_token", own.page_of} <= set(own.gives.model_fields)
    else:
        assert "next_token" not in own.takes.model_fields


def test_no_two_operations_share_a_name_or_an_address():
    assert len({own.name for own in OWN}) == len({(own.method, own.path) for own in OWN}) == len(OWN)


def test_the_check_tells_a_fresh_model_from_a_stale_one(tmp_path: Any):
    assert service_model.stale(tmp_path) == sorted(service_model.documents(), key=list(service_model.documents()).index)
    for name, document in service_model.documents().items():
        (tmp_path / name).write_text(service_model.render(document))
    assert service_model.stale(tmp_path) == []


def test_the_model_is_the_same_every_time_and_whole():
    assert service_model.service() == service_model.service()
    shapes = service_model.service()["shapes"]
    named = set(re.findall(r'"shape": "(\w+)"', json.dumps(service_model.service())))
    assert named == set(shapes), "every shape is there, and none for nothing"


def test_tokens_of_repetition_are_filled_in_by_clients():
    asks = [own for own in OWN if "client_token" in own.takes.model_fields]
    assert "SubmitJob" in {own.name for own in asks}
    for own in asks:
        assert MODEL.operation_model(own.name).idempotent_members == ["ClientToken"]


def test_constraints_become_those_of_a_service_model():
    shapes = service_model.service()["shapes"]
    assert shapes["SubmitJobReplicas"] == {"type": "integer", "min": 1, "max": 100_000}
    assert shapes["ListJobStepsAfter"] == {"type": "long", "min": -1, "max": 2**63 - 1}
    assert shapes["SubmitJobRecovery"] == {"type": "string", "enum": ["in-process", "process"]}
    assert shapes["SubmitJobRequest"]["required"] == ["Name", "Cluster", "Command", "WorkingDir"]
    assert shapes["DescribeJobResponse"]["members"]["Spec"] == {"shape": "Document"}
    assert shapes["DescribeJobResponse"]["members"]["LossLast"] == {"shape": "Double"}
    assert "LossLast" not in shapes["DescribeJobResponse"]["required"]


def test_two_shapes_of_one_name_are_refused_rather_than_mixed_up():
    class Thing(Wire):
        name: str

    class Asks(Asked):
        thing: Thing

    def other() -> type[Wire]:
        class Thing(Wire):
            size: int

        class Answer(Wire):
            thing: Thing

        return Answer

    shapes = Shapes()
    shapes.add_input("AskRequest", Asks)
    with pytest.raises(Clash, match="Thing"):
        shapes.add_output("AskResponse", other())
