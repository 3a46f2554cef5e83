"""Lifecycle scripts: fetched, tried, limited, and told truthfully."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.lifecycle import CannotFetch, Course, Lifecycle, stored_at
from everstep.protocol import LifecycleReport, LifecycleStarted

Put = Callable[..., Course]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Puts a script into the store."""

    def put(text: str, name: str = "on_create.sh", **limits: float) -> Course:
        folder = tmp_path / "store" / "bucket" / "life cycle"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        return Course("s3://bucket/life cycle/", (name,), **({"limit_s": 20.0} | limits))

    return put


@pytest.fixture
def lifecycle(tmp_path: Path) -> Callable[..., Lifecycle]:
    state = tmp_path / "state"
    state.mkdir()

    def lifecycle() -> Lifecycle:
        environment = {"PATH": os.environ["PATH"], "EVERSTEP_NODE_ID": "i-1"}
        return Lifecycle(state, f"file://{tmp_path / 'store'}", environment, time.monotonic)

    return lifecycle


def run(
    lifecycle: Lifecycle, course: Course, tell: Callable[[LifecycleStarted | LifecycleReport], None] = lambda _: None
) -> LifecycleReport:
    return asyncio.run(lifecycle.run(course, tell))


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
    script = put(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n", limit_s=1.0)
    report = run(lifecycle(), script)
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
    report = run(lifecycle(), Course("s3://bucket/life cycle", (name,)))
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
    report = run(lifecycle(), Course("s3://[bucket/scripts", ("on_create.sh",)))
    assert report.exit_code == 127
    assert "s3://[bucket/scripts" in report.tail


def test_a_result_that_cannot_be_noted_is_told_all_the_same(lifecycle, put: Put, tmp_path: Path):
    """As on a full disk. A node that never tells waits for an hour in its checks."""
    (tmp_path / "state" / ".lifecycle.json").mkdir()
    report = run(lifecycle(), put("#!/bin/sh\necho done; exit 3\n"))
    assert (report.exit_code, report.tail) == (3, "done\n")


FLAKY = """#!/bin/sh
echo try >> {runs}
[ $(wc -l < {runs}) -ge 3 ] || {{ echo download failed; exit 1; }}
"""


def test_a_script_that_fails_twice_is_tried_again_and_each_failure_is_told(lifecycle, put: Put, tmp_path: Path):
    told: list[LifecycleStarted | LifecycleReport] = []
    report = run(lifecycle(), put(FLAKY.format(runs=tmp_path / "runs"), tries=3, pause_s=0.05), told.append)
    assert (report.exit_code, report.is_final) == (0, True)
    assert [(one.attempt, one.exit_code, one.is_final, one.tail) for one in told if isinstance(one, LifecycleReport)] == [
        (1, 1, False, "download failed\n"),
        (2, 1, False, "download failed\n"),
    ]


def test_each_try_that_begins_is_told_before_its_end(lifecycle, put: Put, tmp_path: Path):
    told: list[LifecycleStarted | LifecycleReport] = []
    run(lifecycle(), put(FLAKY.format(runs=tmp_path / "runs"), tries=3, pause_s=0.05), told.append)
    assert [(type(one), one.script, one.attempt) for one in told] == [
        (LifecycleStarted, "on_create.sh", 1),
        (LifecycleReport, "on_create.sh", 1),
        (LifecycleStarted, "on_create.sh", 2),
        (LifecycleReport, "on_create.sh", 2),
        (LifecycleStarted, "on_create.sh", 3),
    ]


def test_a_script_that_is_not_there_is_not_told_to_begin(lifecycle, put: Put):
    told: list[LifecycleStarted | LifecycleReport] = []
    assert run(lifecycle(), replace(put("exit 0"), names=("missing.sh",)), told.append).exit_code == 127
    assert told == []


def test_a_script_that_always_fails_is_given_up_after_its_tries(lifecycle, put: Put, tmp_path: Path):
    script = put(f"#!/bin/sh\necho run >> {tmp_path}/runs; echo no disk; exit 6\n", tries=2, pause_s=0.05)
    report = run(lifecycle(), script)
    assert (report.exit_code, report.attempt, report.script, report.tail) == (6, 2, "on_create.sh", "no disk\n")
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_no_try_begins_that_the_time_limit_leaves_no_room_for(lifecycle, put: Put):
    assert run(lifecycle(), put("exit 2\n", tries=9, pause_s=30.0)).attempt == 1


def test_a_second_script_runs_after_the_first_and_only_then(lifecycle, put: Put, tmp_path: Path):
    put(f"#!/bin/sh\ntest -f {tmp_path}/first && touch {tmp_path}/second\n", "on_init.sh")
    first = put(f"#!/bin/sh\n[ -f {tmp_path}/allowed ] && touch {tmp_path}/first\n")
    both = replace(first, names=("on_create.sh", "on_init.sh"))
    assert run(lifecycle(), both).script == "on_create.sh"
    assert not (tmp_path / "second").exists()
    (tmp_path / "allowed").touch()
    (tmp_path / "state" / "lifecycle.json").unlink()
    assert run(lifecycle(), both).exit_code == 0
    assert (tmp_path / "second").exists()


def test_an_agent_that_comes_back_goes_on_with_the_try_it_was_at(lifecycle, put: Put, tmp_path: Path):
    course = put(f"#!/bin/sh\necho run >> {tmp_path}/runs; exit 1\n", tries=3, pause_s=0.05)
    (tmp_path / "state" / "lifecycle.json").write_text('{"name": "on_create.sh", "attempt": 3}')
    assert run(lifecycle(), course).attempt == 3
    assert (tmp_path / "runs").read_text() == "run\n"
