"""The service model and the table's own types say the same: what one refuses, the other refuses; what the model allows is never a fault of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.model import ServiceModel
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from api.aws import service_model
from api.aws.body import Unreadable
from api.aws.validate import Violated, read_members
from api.own.kinds import Own
from api.own.table import OWN
from models.errors import DomainError
from tests.api.aws.from_the_model import Broken, broken, values
from tests.api.serving import Server

MODEL = ServiceModel(service_model.service(), "everstep")
SOME = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=15, database=None, phases=[Phase.generate])
MANY = settings(SOME, max_examples=150)
EACH = pytest.mark.parametrize("own", OWN, ids=lambda own: own.name)


def shape_of(own: Own) -> Any:
    return MODEL.operation_model(own.name).input_shape


def take(own: Own, wire: dict[str, Any]) -> None:
    """As REST does: a body is read strictly, a query is text."""
    if own.read is not None:
        own.read(wire)
    else:
        own.takes.model_validate_json(json.dumps(wire), strict=own.method not in {"GET", "DELETE"})


BROKEN = [(own, case) for own in OWN for case in broken(own.name, shape_of(own))]


@pytest.mark.parametrize("own, case", BROKEN, ids=[str(case) for _, case in BROKEN])
def test_every_constraint_holds_at_both_doors(own: Own, case: Broken):
    with pytest.raises((Violated, Unreadable)) as refused:
        read_members(shape_of(own), case.wire)
    assert case.told.lower() in str(refused.value).lower()
    with pytest.raises((ValidationError, DomainError)):
        take(own, case.wire)


@EACH
def test_what_the_model_allows_the_types_allow_too(own: Own):
    @SOME
    @given(values(shape_of(own)))
    def allowed(wire: dict[str, Any]) -> None:
        if own.read is None:
            take(own, wire)

    allowed()


def test_whatever_the_model_allows_is_done_or_refused_and_never_a_fault_of_ours(server: Server):
    @MANY
    @given(st.sampled_from(OWN).flatmap(lambda own: st.tuples(st.just(own), values(shape_of(own)))))
    def called(asked: tuple[Own, dict[str, Any]]) -> None:
        own, wire = asked
        answer = server.call(own.name, wire, service="everstep", target_prefix="Everstep")
        errors = {shape.name for shape in MODEL.operation_model(own.name).error_shapes}
        assert answer.status_code == 200 or (answer.status_code == 400 and answer.json()["__type"] in errors), answer.text

    called()
