"""The OpenAPI documents: fresh, and whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api import openapi
from api.rest.sagemaker_described import add_operations


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from references(item)


def test_the_documents_say_what_the_routes_say():
    assert openapi.stale() == []


@pytest.mark.parametrize("name", sorted(openapi.documents()))
def test_every_reference_leads_somewhere(name: str):
    document = openapi.documents()[name]
    for reference in references(document):
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_a_file_that_is_missing_or_old_is_stale(tmp_path: Path):
    (tmp_path / "agent.json").write_text("{}")
    assert openapi.stale(tmp_path) == ["control-plane.json", "agent.json"]


def test_the_job_file_is_described_by_its_keys():
    document = openapi.control_plane()
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "processes_per_node" in document["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]


def test_only_what_can_be_reached_is_described():
    document = openapi.control_plane()
    components = document["components"]["schemas"]
    reached: set[str] = set()
    wanted = {name.rpartition("/")[2] for name in references([document["paths"], document["components"]["responses"]])}
    while wanted:
        name = wanted.pop()
        if name in components and name not in reached:
            reached.add(name)
            wanted |= {reference.rpartition("/")[2] for reference in references(components[name])}
    assert set(components) - reached == set()


def test_every_operation_of_the_control_plane_has_a_name_callers_and_problems():
    paths = openapi.control_plane()["paths"]
    operations = {operation["operationId"]: operation for path in paths for operation in paths[path].values()}
    assert len(operations) == sum(map(len, paths.values()))
    for name, operation in operations.items():
        assert name.isalnum()
        if name in {"Healthz", "Readyz"}:
            assert operation["security"] == []
            continue
        assert operation["security"] == [{"token": []}, {"signature": []}]
        assert set(operation["responses"]) >= {"400", "401", "403", "422", "429", "503"}, name
        assert all(int(status) in range(200, 600) for status in operation["responses"])


def test_two_components_of_one_name_are_refused():
    document = {"paths": {}, "components": {"schemas": {"VpcConfig": {"type": "string"}}}}
    with pytest.raises(ValueError, match="VpcConfig"):
        add_operations(document)
