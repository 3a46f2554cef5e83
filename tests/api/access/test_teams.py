"""A team's caller can never name, read or change what is another team's, through any id, at either door."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine

from api.auth import need_of
from api.aws import service_model
from api.aws.schema import sagemaker as sagemaker_model
from api.aws.table.refusals import REFUSALS
from api.aws.table.sagemaker import SAGEMAKER
from api.own.table import OWN
from api.rest.sagemaker_routes import ROUTES
from models.access.states import Role
from models.session import Sessions, connect
from models.session import sessions as session_factory
from tests.api.access import attacks
from tests.api.access.attacks import NAME_NOTHING
from tests.api.access.conftest import Hold, holding
from tests.api.access.holders import Holder, refused
from tests.api.access.world import EKS, VPC, World, everything_but, made, resolved
from tests.api.aws.conftest import sweep
from tests.api.serving import Server

SERVED = {name for name in SAGEMAKER if name not in REFUSALS}
OWN_NAMES = {own.name for own in OWN}
NAMING = re.compile(r"(Ids?|Arns?|Identifier|Cluster|ClusterName|^Target)$")
NOT_OF_ANYBODY = {
    "ImageId": "an image is the installation's",
    "TrainingPlanArn": "there are no training plans",
    "ResourceType": "a word",
}
"""Members that look like ids of something of a team's, and are none."""
REFUSALS_OF_REST = {400, 403, 404, 409, 422}


@pytest.fixture(scope="module")
def server(shared_server: Server) -> Server:
    """One world for all tests here: what red does to its own is no other test's affair, and to anything else it can do nothing."""
    return shared_server


@pytest.fixture(scope="module")
def sessions(shared_database_url: str) -> Iterator[Sessions]:
    engine = connect(shared_database_url)
    yield session_factory(engine)
    engine.dispose()


@pytest.fixture(scope="module")
def hold(server: Server) -> Iterator[Hold]:
    with holding(server) as hold:
        yield hold


@pytest.fixture(scope="module")
def red(hold: Hold) -> Holder:
    """An admin of its team: whoever may do most."""
    return hold("Admin", "red")


@pytest.fixture(scope="module")
def world(server: Server, sessions: Sessions, hold: Hold, red: Holder, broom: Engine) -> Iterator[World]:
    yield made(server, sessions, red, hold("Admin", "blue"))
    sweep(broom)


def members_of(name: str) -> set[str]:
    model = sagemaker_model() if name in SERVED else service_model.everstep()
    shape = model.operation_model(name).input_shape
    return set(shape.members) if shape is not None else set()


def test_every_operation_that_takes_an_id_is_tried_with_every_id_that_it_takes():
    tried = {**attacks.SAGEMAKER, **attacks.OWN}
    for name in SERVED | OWN_NAMES:
        naming = {member for member in members_of(name) if NAMING.search(member)} - NOT_OF_ANYBODY.keys()
        if name in NAME_NOTHING:
            assert naming <= {"ClusterName"}, f"{name} takes ids: try them in tests/api/access/attacks.py"
            continue
        assert name in tried, f"{name} is new: try it in tests/api/access/attacks.py"
        assert naming <= {member for attack in tried[name] for member in attack}, name
    assert not tried.keys() & NAME_NOTHING.keys()


def told(text: str, world: World, asked: Any) -> set[str]:
    """What the answer says of blue that red did not say itself."""
    said = str(asked)
    return {word for word in world.secret if word in text and word not in said}


def attempts(world: World, table: dict[str, list[dict[str, Any]]], served: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in sorted(served & table.keys()):
        for template in table[name]:
            yield name, resolved(template, world.ids)


def is_empty(body: dict[str, Any]) -> bool:
    """A listing of nothing, accounts of no time; or of a batch nothing that succeeded."""
    done = {name: value for name, value in body.items() if name not in {"Failed", "FailedNodeLogicalIds", "NextToken", "Accounts"}}
    return not any(done.values()) and not any(account["Seconds"] for account in body.get("Accounts", ()))


def test_no_id_works_at_the_aws_door(world: World, red: Holder, server: Server, sessions: Sessions):
    with sessions() as session:
        before = everything_but(session, world.mine)
    for table, served, service, prefix in (
        (attacks.SAGEMAKER, SERVED, "sagemaker", "SageMaker"),
        (attacks.OWN, OWN_NAMES, "everstep", "Everstep"),
    ):
        for name, asked in attempts(world, table, served):
            answer = server.call(name, asked, key_id=red.key_id, secret=red.secret, service=service, target_prefix=prefix)
            case = (name, asked, answer.text)
            assert answer.status_code in {200, 400}, case
            assert told(answer.text, world, asked) == set(), case
            if answer.status_code == 200:
                assert is_empty(answer.json()), case
            else:
                assert not is_ill_formed(answer.json()), case
        with sessions() as session:
            assert everything_but(session, world.mine) == before


def is_ill_formed(error: dict[str, Any]) -> bool:
    """An attack that is refused for its shape has shown nothing."""
    return error["__type"] == "SerializationException" or "validation error" in error["message"]


def test_no_id_works_at_the_rest_door(world: World, red: Holder, sessions: Sessions):
    with sessions() as session:
        before = everything_but(session, world.mine)
    routes = [(attacks.SAGEMAKER, route.operation, route.method, route.path) for route in ROUTES if route.operation in SERVED]
    for table, name, method, path in [*routes, *((attacks.OWN, own.name, own.method, own.path) for own in OWN)]:
        for template in table.get(name, []):
            asked = resolved(template, world.ids)
            answer = ask(red, method, path, asked)
            if answer is None:
                continue
            case = (name, asked, answer.text)
            assert told(answer.text, world, asked) == set(), case
            if answer.status_code in {200, 202}:
                assert is_empty(answer.json()), case
            else:
                assert answer.status_code in REFUSALS_OF_REST, case
                assert not answer.json().get("violations"), case
    with sessions() as session:
        assert everything_but(session, world.mine) == before


def ask(red: Holder, method: str, path: str, asked: dict[str, Any]) -> Any:
    """None: this path names something else than the attack does."""
    names = {re.sub(r"_", "", name).lower(): name for name in re.findall(r"{(\w+)}", path)}
    given = {names[member.lower()]: value for member, value in asked.items() if member.lower() in names}
    if len(given) < len(names):
        return None
    url = path
    for name, value in given.items():
        url = url.replace(f"{{{name}}}", quote(str(value), safe=""))
    rest = {member: value for member, value in asked.items() if member.lower() not in names}
    if method in {"GET", "DELETE"}:
        return red.rest.request(method, url, params={snake(member): value for member, value in rest.items()})
    return red.rest.request(method, url, json=rest)


def snake(member: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", member).lower()


def test_no_listing_tells_of_another_team(world: World, red: Holder, hold: Hold, server: Server):
    """The log of calls is left out, also as a part of all events: it tells red what red has named itself."""
    operator = hold("Operator", "red")
    of_shared = {"ClusterName": world.ids["shared"], "ResourceArn": world.ids["shared_arn"]}
    for service, prefix, names, model in (
        ("sagemaker", "SageMaker", SERVED, sagemaker_model()),
        ("everstep", "Everstep", OWN_NAMES, service_model.everstep()),
    ):
        for name in sorted(names - {"ListAuditEvents"}):
            required = set(model.operation_model(name).input_shape.required_members)
            if not name.startswith(("List", "Search")) or not required <= of_shared.keys():
                continue
            asked = {member: of_shared[member] for member in required}
            caller = red if need_of(name) is Role.ADMIN else operator
            keys = {"key_id": caller.key_id, "secret": caller.secret}
            answer = server.call(name, asked, **keys, service=service, target_prefix=prefix)
            assert answer.status_code == 200, (name, answer.text)
            assert told(answer.text, world, asked) == set(), name


def test_a_team_sees_its_own_beside_what_is_shared(world: World, red: Holder):
    seen = {row["ClusterName"] for row in red.sagemaker.list_clusters()["ClusterSummaries"]}
    assert seen == {"red-cluster", "shared-cluster"}
    shown = red.sagemaker.describe_cluster(ClusterName="shared-cluster")
    assert [part["CurrentCount"] for part in shown["InstanceGroups"]] == [3], "a count tells of no node"
    nodes = red.sagemaker.list_cluster_nodes(ClusterName="shared-cluster")["ClusterNodeSummaries"]
    assert sorted(row["InstanceId"] for row in nodes) == [f"i-{3:017x}", f"i-{5:017x}"]
    jobs = {row["Name"] for row in red.everstep.list_jobs(Cluster="red-cluster")["Jobs"]}
    assert jobs >= {"red-private"}


def test_an_admin_without_a_team_sees_everything(world: World, hold: Hold):
    admin = hold("Admin")
    assert len(admin.sagemaker.list_clusters()["ClusterSummaries"]) == 3
    jobs = {row["Name"] for row in admin.everstep.list_jobs()["Jobs"]}
    assert jobs >= {"red-job", "red-private", "blue-job", "blue-private"}
    assert len(admin.sagemaker.list_cluster_nodes(ClusterName="shared-cluster")["ClusterNodeSummaries"]) == 3


def test_what_a_team_makes_is_its_own(world: World, red: Holder, hold: Hold):
    file = {"Command": ["python", "train.py"], "WorkingDir": "/code", "Replicas": 1}
    on_shared = red.everstep.submit_job(Name="another", Cluster="shared-cluster", **file)["JobId"]
    other = hold("Operator", "blue")
    assert refused(other.everstep.describe_job, JobId=on_shared)[0] == "ResourceNotFound"
    assert red.everstep.describe_job(JobId=on_shared)["Name"] == "another"
    admin = hold("Operator")
    of_cluster = admin.everstep.submit_job(Name="given", Cluster="red-cluster", **file)["JobId"]
    assert red.everstep.describe_job(JobId=of_cluster)["Name"] == "given", "a job on a team's cluster is the team's"
    given = admin.everstep.submit_job(Name="for-blue", Cluster="shared-cluster", Team="blue", **file)["JobId"]
    assert other.everstep.describe_job(JobId=given)["Name"] == "for-blue"
    assert refused(red.everstep.describe_job, JobId=given)[0] == "ResourceNotFound"


def test_a_teams_jobs_have_names_of_their_own(world: World, red: Holder):
    file = {"Cluster": "shared-cluster", "Command": ["python"], "WorkingDir": "/code", "Replicas": 1}
    assert red.everstep.submit_job(Name="blue-job", **file)["JobId"] not in world.secret
    assert refused(red.everstep.submit_job, Name="red-job", **file)[0] == "ResourceInUse"


def test_a_follower_of_events_hears_of_its_own_team_only(world: World, red: Holder, hold: Hold):
    blue = hold("Operator", "blue")
    with red.rest.stream("GET", "/v1/events", params={"follow": "true"}, timeout=20) as told:
        lines = told.iter_lines()
        blue.everstep.stop_job(JobId=world.ids["job"])
        mine = red.everstep.list_jobs(Live=True)["Jobs"][0]["JobId"]
        red.everstep.stop_job(JobId=mine)
        heard = []
        for line in lines:
            heard.append(line)
            if mine in line:
                break
    assert world.ids["job"] not in "".join(heard)


def test_the_name_of_another_teams_cluster_is_taken_and_nothing_more_is_said(world: World, red: Holder):
    code, message = refused(
        red.sagemaker.create_cluster,
        ClusterName="blue-cluster",
        InstanceGroups=[attacks.group()],
        NodeProvisioningMode="Continuous",
    )
    assert code == "ResourceInUse"
    assert told(message, world, "blue-cluster") == set()


def test_what_another_teams_cluster_holds_cannot_be_held_twice(world: World, red: Holder):
    code, message = refused(
        red.sagemaker.create_cluster,
        ClusterName="another",
        InstanceGroups=[attacks.group()],
        Orchestrator={"Eks": {"ClusterArn": EKS.format("blue-cluster")}},
        VpcConfig=VPC,
    )
    assert code == "ValidationException"
    assert "already in use" in message


def test_a_shared_cluster_is_everybodys_to_look_at_and_nobodys_of_a_team_to_change(world: World, red: Holder):
    code, message = refused(red.sagemaker.delete_cluster, ClusterName="shared-cluster")
    assert code == "AccessDeniedException"
    assert message.startswith(
        f"User: arn:aws:iam::123456789012:user/{red.name} is not authorized to perform: sagemaker:DeleteCluster"
    )
    assert "a caller of team red may not change it" in message
