"""``everstep checkpoint`` as a user types it, against a real API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from models.session import Sessions, unit_of_work
from tests import rows
from tests.everstep.cli.conftest import Type


@pytest.fixture
def job(sessions: Sessions) -> str:
    """Its step 10 is durable, its step 20 complete on two nodes, and of step 30 one node holds a shard."""
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session, "saves")
        one, other = rows.nodes(session, cluster, 2)
        made = rows.job(session, cluster)
        name = rows.namespace(session, made)
        for node in (one, other):
            rows.held(session, node, name, 20, [0, 1])
        rows.held(session, one, name, 30, [0], world_size=None)
        rows.durable(session, cluster, name, 10)
        return made.id


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_saved_steps_are_listed_newest_first_with_their_tiers(type_: Type, job: str):
    found = told(type_("checkpoint", "list", job, "--json"))["checkpoints"]
    assert [step["step"] for step in found] == [30, 20, 10]
    assert [step["is_complete_in_memory"] for step in found] == [False, True, False]
    assert [step["durable_at"] is not None for step in found] == [False, False, True]
    lines = type_("checkpoint", "list", job).stdout.splitlines()
    assert "1 shards" in lines[1]
    assert "complete, 4 copies" in lines[2]
    assert "2.0 MiB" in lines[2]


def test_a_step_is_shown_with_the_holders_of_its_shards(type_: Type, job: str):
    assert [len(shard["holders"]) for shard in told(type_("checkpoint", "show", job, 20, "--json"))["shards"]] == [2, 2]
    written = type_("checkpoint", "show", job, 20).stdout
    assert f"i-{1:017x}, i-{2:017x}" in written
    assert "Metadata" in written
    assert "step 20" in type_("job", "show", job).stdout


def test_a_step_is_pinned_unpinned_exported_and_deleted(type_: Type, job: str):
    assert "pinned" in type_("checkpoint", "pin", job, 10).stdout
    refused = type_("checkpoint", "delete", job, 10)
    assert (refused.exit_code, "is pinned" in refused.stderr) == (2, True)
    assert told(type_("checkpoint", "unpin", job, 10, "--json"))["is_pinned"] is False
    export = type_("checkpoint", "export", job, 20, "--format", "safetensors").stdout.strip()
    assert export.startswith("export-")
    assert export in type_("checkpoint", "show", job, 20).stdout
    assert told(type_("checkpoint", "delete", job, 10, "--json"))["status"] == "Dropping"


REFUSED = [
    (("delete", 20), "newest"),
    (("export", 30), "not complete in any tier"),
    (("export", 20, "--format", "pickle"), "format"),
    (("export", 20, "--target", "/tmp/x"), "s3://"),
    (("show", 99), "does not exist"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(type_: Type, job: str, words: tuple[Any, ...], message: str):
    verb, step, *more = words
    result = type_("checkpoint", verb, job, step, *more)
    assert result.exit_code != 0
    assert message in result.stderr.lower()
    assert result.stderr.count("\n") == 1
