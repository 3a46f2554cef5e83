"""Whatever the OpenAPI document allows, and whatever it forbids: no server error, no answer that the document does not describe.

Cases come from schemathesis. Half of them name resources that exist, so that more than the door is reached; half of them break a rule of the document.
A failing run prints its seed; ``EVERSTEP_FUZZ_SEED`` repeats it.
"""

from __future__ import annotations

import os
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.openapi import control_plane
from models.cluster.queries import find
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.serving import TOKEN, Server, group

CHECKS: Final = [
    checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NOT_FUZZED: Final = frozenset({"Readyz"})
"""It answers 503 here, rightly: there is no worker."""
KEYS: Final = frozenset({"CreateKey", "RotateKey", "RevokeKey"})
"""Not with names that exist: the run would revoke its own credential."""
NO_HTTP: Final = b"Invalid HTTP request received."
"""What the HTTP server says before anything of ours is asked: a header that is none, for example."""
SHAPES: Final = ("free", "named", "broken", "broken and named")


@pytest.fixture
def names(server: Server, sessions: Sessions) -> dict[str, str]:
    """Of resources that exist, by the parameters that name them."""
    client = requests.Session()
    client.headers["authorization"] = f"Bearer {TOKEN}"

    def ask(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = client.request(method, f"{server.url}{path}", json=body, timeout=20)
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    wish = {"ClusterName": "fuzz", "NodeProvisioningMode": "Continuous", "InstanceGroups": [group()]}
    arn = ask("POST", "/v1/clusters", wish)["ClusterArn"]
    with unit_of_work(sessions) as session:
        node = rows.node(session, find(session, "fuzz"))
        found = {"NodeId": str(node.instance_id), "NodeLogicalId": str(node.logical_id)}
    job = ask("POST", "/v1/jobs", {"name": "fuzz", "cluster": "fuzz", "command": ["python"], "working_dir": "/", "replicas": 1})
    config = {"Name": "fuzz", "ClusterArn": arn, "SchedulerConfig": {"PriorityClasses": [{"Name": "a", "Weight": 1}]}}
    scheduler = ask("POST", "/v1/scheduler-configs", config)["ClusterSchedulerConfigId"]
    event = ask("GET", "/v1/clusters/fuzz/events")["Events"][0]["EventId"]
    client.close()
    of_cluster = {"ClusterName": "fuzz", "ClusterArn": arn, "ResourceArn": arn, "cluster": "fuzz", "EventId": event}
    return found | of_cluster | {"job_id": job["JobId"], "ClusterSchedulerConfigId": scheduler}


def operations() -> Iterator[Any]:
    schema = schemathesis.openapi.from_dict(control_plane())
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.definition.raw["operationId"] not in NOT_FUZZED:
            yield operation


def strategy(operation: Any, shape: str, names: dict[str, str]) -> Any:
    mode = GenerationMode.NEGATIVE if "broken" in shape else GenerationMode.POSITIVE
    path = {parameter.name: names[parameter.name] for parameter in operation.path_parameters if parameter.name in names}
    return operation.as_strategy(generation_mode=mode, path_parameters=path if "named" in shape and path else None)


def fuzz(server: Server, names: dict[str, str], *, examples: int, seed: int, shapes: int = len(SHAPES)) -> Counter[int]:
    """Returns how many cases were answered with which status. Of each operation some shapes are drawn, or all."""
    drawn = random.Random(seed)
    sent: Counter[int] = Counter()
    with requests.Session() as client:
        client.trust_env = False
        for operation in operations():
            name = operation.definition.raw["operationId"]
            for shape in drawn.sample(SHAPES, shapes):
                if "named" in shape and name in KEYS:
                    continue
                sent += fuzz_one(server, client, operation, shape, names, examples=examples, seed=seed)
    return sent


def fuzz_one(
    server: Server, client: requests.Session, operation: Any, shape: str, names: dict[str, str], *, examples: int, seed: int
) -> Counter[int]:
    sent: Counter[int] = Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
        print_blob=False,
    )
    @hypothesis.given(case=strategy(operation, shape, names))
    def check(case: Any) -> None:
        if isinstance(case.query, dict):
            case.query.pop("follow", None)  # a stream that is followed has no end
        response = case.call(base_url=server.url, session=client, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30)
        sent[response.status_code] += 1
        if response.content != NO_HTTP:
            case.validate_response(response, checks=CHECKS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check()
        except hypothesis.errors.Unsatisfiable:
            return sent  # nothing of this shape: an operation without parameters cannot be asked wrongly
        except BaseException as error:
            error.add_note(f"{operation.label}, {shape}, EVERSTEP_FUZZ_SEED={seed}")
            raise
    return sent


def seed() -> int:
    return int(os.environ.get("EVERSTEP_FUZZ_SEED") or random.SystemRandom().randrange(2**32))


def test_a_hundred_requests_from_the_document_are_answered_as_it_says(server: Server, names: dict[str, str]) -> None:
    sent = fuzz(server, names, examples=2, seed=seed(), shapes=1)
    assert sent.total() > 80
    assert min(sent[200], sent[404], sent[422]) > 4, sent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_some_thousands_of_requests_from_the_document_are_answered_as_it_says(server: Server, names: dict[str, str]) -> None:
    sent = fuzz(server, names, examples=20, seed=seed())
    print(f"{sent.total()} cases: {dict(sent)}")
    assert sent.total() > 2000
