"""The lifecycle script: fetched, run once, limited, and told truthfully."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.lifecycle import CannotFetch, Lifecycle, Script, stored_at
from everstep.protocol import LifecycleReport

Put = Callable[..., Script]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Puts a script into the store."""

    def put(text: str, name: str = "on_create.sh") -> Script:
        folder = tmp_path / "store" / "bucket" / "life cycle"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        return Script("s3://bucket/life cycle/", name)

    return put


@pytest.fixture
def lifecycle(tmp_path: Path) -> Callable[..., Lifecycle]:
    state = tmp_path / "state"
    state.mkdir()

    def lifecycle(limit_s: float = 20.0) -> Lifecycle:
        environment = {"PATH": os.environ["PATH"], "EVERSTEP_NODE_ID": "i-1"}
        return Lifecycle(state, f"file://{tmp_path / 'store'}", limit_s, environment, time.monotonic)

    return lifecycle


def run(lifecycle: Lifecycle, script: Script) -> LifecycleReport:
    return asyncio.run(lifecycle.run(script))


def test_a_script_runs_beside_the_files_it_came_with_and_sees_its_node(lifecycle, put: Put):
    put("hello from a file", "greeting.txt")
    report = run(lifecycle(), put("#!/bin/bash\ncat greeting.txt; echo; echo node $EVERSTEP_NODE_ID\n"))
    assert (report.exit_code, report.tail) == (0, "hello from a file\nnode i-1\n")


def test_a_script_without_an_interpreter_line_is_a_shell_script(lifecycle, put: Put):
    assert run(lifecycle(), put("exit 3\n")).exit_code == 3


def test_the_end_of_a_failing_scripts_output_is_told(lifecycle, put: Put):
    report = run(lifecycle(), put("#!/bin/sh\nyes no | head -c 100000; echo disk missing >&2; exit 9\n"))
    assert report.exit_code == 9
    assert report.tail.endswith("disk missing\n")
    assert len(report.tail) < 5000


def test_a_script_that_takes_too_long_is_ended_with_its_children(lifecycle, put: Put, tmp_path: Path):
    script = put(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    report = run(lifecycle(limit_s=1.0), script)
    assert report.exit_code == 124
    assert "time limit" in report.tail
    child = int((tmp_path / "child").read_text())
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in {"Z", "X"}


def test_a_script_runs_once_an_instance_and_its_result_is_told_again(lifecycle, put: Put, tmp_path: Path):
    script = put(f"#!/bin/sh\necho again >> {tmp_path}/runs\n")
    first = run(lifecycle(), script)
    assert run(lifecycle(), script) == first
    assert (tmp_path / "runs").read_text() == "again\n"


@pytest.mark.parametrize("name", ["missing.sh", "../outside.sh", "/bin/sh"])
def test_a_script_that_is_not_in_the_store_is_reported_as_such(lifecycle, put: Put, name: str, tmp_path: Path):
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    (tmp_path / "store" / "bucket" / "outside.sh").write_text("exit 0")
    put("exit 0")
    report = run(lifecycle(), Script("s3://bucket/life cycle", name))
    assert report.exit_code == 127
    assert name in report.tail


@pytest.mark.parametrize("uri", ["s3://bucket/../../etc", "http://bucket/x", "s3:///x", "/etc"])
def test_addresses_that_lead_out_of_the_store_are_refused(uri: str, tmp_path: Path):
    with pytest.raises(CannotFetch):
        stored_at(uri, f"file://{tmp_path}")


def test_a_store_that_the_agent_cannot_read_is_named(lifecycle):
    with pytest.raises(CannotFetch, match="s3://elsewhere"):
        stored_at("s3://b/x", "s3://elsewhere")


def test_an_address_that_is_none_is_the_scripts_failure(lifecycle):
    report = run(lifecycle(), Script("s3://[bucket/scripts", "on_create.sh"))
    assert report.exit_code == 127
    assert "s3://[bucket/scripts" in report.tail


def test_a_result_that_cannot_be_noted_is_told_all_the_same(lifecycle, put: Put, tmp_path: Path):
    """As on a full disk. A node that never tells waits for an hour in its checks."""
    (tmp_path / "state" / ".lifecycle.json").mkdir()
    report = run(lifecycle(), put("#!/bin/sh\necho done; exit 3\n"))
    assert (report.exit_code, report.tail) == (3, "done\n")
