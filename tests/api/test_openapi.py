"""The OpenAPI documents: fresh, and whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api import openapi


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
