"""Which role an operation takes, at both doors."""

from __future__ import annotations

import re

import pytest

from api.auth import Caller, is_mutating, need_of, permit
from api.aws.table.sagemaker import SAGEMAKER
from api.own.table import OWN
from api.rest.sagemaker_routes import ROUTES
from models.access.states import Role
from models.errors import Forbidden
from tests.api.access.conftest import Hold
from tests.api.access.holders import refused
from tests.api.serving import Server

READS = {"Describe", "List", "Get", "Search"}
CHANGES = {
    "Add",
    "Attach",
    "Batch",
    "Clear",
    "Create",
    "Delete",
    "Deprecate",
    "Detach",
    "Export",
    "Inject",
    "Label",
    "Move",
    "Pin",
    "Put",
    "Register",
    "Resize",
    "Resume",
    "Revoke",
    "Rotate",
    "Set",
    "Start",
    "Stop",
    "Submit",
    "Update",
}
OPERATIONS = sorted({*SAGEMAKER, *(own.name for own in OWN)})
REFUSED = "AccessDeniedException"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_verb_of_an_operation_says_whether_it_changes_anything(operation: str):
    verb = re.match(r"[A-Z][a-z]+", operation)[0]
    assert verb in READS | CHANGES, "a new verb: say here whether it only looks"
    assert is_mutating(operation) is (verb in CHANGES)
    assert need_of(operation) in ({Role.VIEWER, Role.ADMIN} if verb in READS else {Role.OPERATOR, Role.ADMIN})


def test_a_method_of_rest_that_only_looks_belongs_to_an_operation_that_only_looks():
    for name, method in [(own.name, own.method) for own in OWN] + [(route.operation, route.method) for route in ROUTES]:
        assert (method == "GET") is not is_mutating(name), name


def test_keys_the_audit_log_and_what_is_the_installations_are_for_admins():
    assert {name for name in OPERATIONS if need_of(name) is Role.ADMIN} == {
        name for name in OPERATIONS if re.search(r"Keys?$|Audit", name)
    } | {"RegisterImageRelease", "DeprecateImageRelease"}


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("need", list(Role))
def test_a_role_covers_those_below_it(role: Role, need: Role):
    order = ["viewer", "operator", "admin"]
    assert role.covers(need) is (order.index(role) >= order.index(need))


def test_what_is_refused_is_said_in_the_words_of_aws():
    caller = Caller("123456789012", "ada", Role.VIEWER)
    with pytest.raises(Forbidden) as caught:
        permit(caller, "sagemaker", "CreateCluster")
    assert str(caught.value).startswith(
        "User: arn:aws:iam::123456789012:user/ada is not authorized to perform: sagemaker:CreateCluster"
    )
    assert "viewer" in str(caught.value)


@pytest.mark.parametrize("role", ["Viewer", "Operator", "Admin"])
def test_every_operation_asks_for_its_role_at_the_aws_door(hold: Hold, server: Server, role: str):
    holder = hold(role)
    for service, prefix, names in (
        ("sagemaker", "SageMaker", SAGEMAKER),
        ("everstep", "Everstep", [own.name for own in OWN]),
    ):
        for name in names:
            answer = server.call(name, {}, key_id=holder.key_id, secret=holder.secret, service=service, target_prefix=prefix)
            is_refused = answer.status_code != 200 and answer.json()["__type"] == REFUSED
            assert is_refused is not Role(role.lower()).covers(need_of(name)), (name, answer.text)


@pytest.mark.parametrize("role", ["Viewer", "Operator", "Admin"])
def test_every_route_asks_for_the_same_role_at_the_rest_door(hold: Hold, role: str):
    holder = hold(role)
    for name, method, path in [(own.name, own.method, own.path) for own in OWN] + [
        (route.operation, route.method, route.path) for route in ROUTES if route.operation in SAGEMAKER
    ]:
        answer = holder.rest.request(method, re.sub(r"{\w+}", "nothing", path), json=None if method in {"GET", "DELETE"} else {})
        is_refused = answer.status_code == 403 and answer.json()["code"] == "Forbidden"
        assert is_refused is not Role(role.lower()).covers(need_of(name)), (name, answer.text)


def test_who_may_not_call_an_operation_learns_nothing_of_what_it_would_say(hold: Hold):
    viewer = hold("Viewer")
    code, message = refused(viewer.sagemaker.delete_cluster, ClusterName="nothing")
    assert code == REFUSED
    assert "nothing" not in message
