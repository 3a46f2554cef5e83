"""``everstep job`` as a user types it, against a real API on a real database."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from everstep.cli.main import app
from everstep.embedded.children import free_port
from models.clock import WallClock
from models.job import logs, reports
from models.job.changes import settle_job
from models.job.states import JobState, ProcessState
from models.job.table import Job, JobProcess
from models.session import Sessions, unit_of_work
from tests import rows
from tests.everstep.cli.conftest import Type
from tests.live import Work, wait_for

WHY = (
    "user code failed: ValueError: [/no] such thing as [red], and a line that is longer than any terminal is wide, by far, I think"
)


@pytest.fixture
def job_file(tmp_path: Path, sessions: Sessions) -> Path:
    with unit_of_work(sessions) as session:
        rows.cluster(session)
    path = tmp_path / "jobs" / "gpt.yaml"
    path.parent.mkdir()
    path.write_text("name: gpt\ncluster: c1\ncommand: [python, train.py]\nreplicas: 2\nworking_dir: ../code\n")
    return path


def one_document(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_a_job_is_submitted_from_its_file_and_its_directory_is_found_from_there(type_: Type, job_file: Path, tmp_path: Path):
    submitted = one_document(type_("job", "submit", job_file, "--json"))
    shown = one_document(type_("job", "show", submitted["job_id"], "--json"))
    contract = {"job_id", "name", "cluster", "status", "step", "loss_first", "loss_last", "generation", "world_size", "nodes"}
    assert contract | {"evictions", "restarts", "goodput", "why"} <= set(shown)
    assert shown["status"] == "Queued"
    assert shown["spec"]["working_dir"] == str(tmp_path / "code")


def test_a_submission_tells_a_person_and_a_program_what_the_worst_fault_costs(type_: Type, job_file: Path):
    told = type_("job", "submit", job_file, "--set", "replicas=1")
    assert "warning: no redundancy" in told.stderr
    assert told.stdout.count("\n") == 1, "the id alone"
    assert one_document(type_("job", "submit", job_file, "--set", "name=two", "--json"))["redundancy"]["warning"] is None
    assert "no redundancy" in type_("job", "show", told.stdout.strip()).stdout


def test_goodput_is_told_of_a_job_a_cluster_or_a_team_and_of_nothing_else(type_: Type, job_file: Path):
    job_id = type_("job", "submit", job_file).stdout.strip()
    found = one_document(type_("goodput", job_id, "--json"))
    assert (found["jobs"], found["goodput"], found["allocated_s"]) == (1, None, 0.0)
    assert one_document(type_("goodput", "--cluster", "c1", "--json"))["accounts"] == found["accounts"]
    assert "goodput –" in type_("goodput", "--team", "nobody").stdout
    assert type_("goodput").exit_code == 2
    assert type_("goodput", job_id, "--cluster", "c1").exit_code == 2


def test_keys_can_be_set_on_the_command_line(type_: Type, job_file: Path):
    words = ("--set", "replicas=3", "--set", "env.LR=0.1", "--set", "command=[python, other.py, --fast]")
    job_id = one_document(type_("job", "submit", job_file, *words, "--json"))["job_id"]
    spec = one_document(type_("job", "show", job_id, "--json"))["spec"]
    assert (spec["replicas"], spec["env"], spec["command"]) == (3, {"LR": "0.1"}, ["python", "other.py", "--fast"])


@pytest.mark.parametrize(
    "words, message",
    [
        (("--set", "replcias=3"), "did you mean 'replicas'"),
        (("--set", "replicas=many"), "replicas"),
        (("--set", "elastic={min: 1}"), "elastic.max"),
        (("--set", "replicas"), "KEY=VALUE"),
        (("--set", "name.x=1"), "no mapping"),
        (("--set", "cluster=c9"), "c9"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(type_: Type, job_file: Path, words: tuple[str, ...], message: str):
    result = type_("job", "submit", job_file, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("text", ["name: [", "- a", "name: a\nname: b"])
def test_a_file_that_is_no_job_file_is_refused_before_anybody_is_asked(type_: Type, tmp_path: Path, text: str):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    result = type_("job", "submit", path)
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert type_("job", "submit", tmp_path / "missing.yaml").exit_code == 2


def test_jobs_are_listed_shown_explained_and_stopped(type_: Type, job_file: Path):
    job_id = type_("job", "submit", job_file).stdout.strip()
    assert "gpt" in type_("job", "list").stdout
    assert one_document(type_("job", "list", "--live", "--json"))["jobs"][0]["job_id"] == job_id
    assert "Queued" in type_("job", "show", job_id).stdout
    assert "was submitted" in type_("job", "why", job_id).stdout
    assert one_document(type_("job", "why", job_id, "--json"))["events"][0]["name"] == "job submitted"
    assert "stop was requested" in type_("job", "stop", job_id).stdout
    assert "stopping" in type_("job", "list").stdout


@pytest.mark.parametrize("verb", ["show", "logs", "stop", "why"])
def test_a_job_that_does_not_exist_is_named(type_: Type, verb: str):
    result = type_("job", verb, "job-nothing")
    assert result.exit_code == 2
    assert "job-nothing" in result.stderr


@pytest.mark.parametrize("text", ["", "../clusters", "a b", "job-1\n"])
def test_what_can_be_no_id_of_a_job_is_refused_before_anybody_is_asked(type_: Type, text: str):
    result = type_("job", "show", text)
    assert result.exit_code == 2
    assert result.stderr == f"everstep: {text!r} is no id of a job; `everstep job list` shows them\n"


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_waiting_for_a_job_ends_with_its_verdict(type_: Type, work: Work, sessions: Sessions, tmp_path: Path, how: tuple[str, ...]):
    path = tmp_path / "job.yaml"
    path.write_text("name: waited\ncluster: c1\ncommand: [python, train.py]\nreplicas: 2\n")

    def fail_it() -> None:
        def found() -> str | None:
            with sessions() as session:
                row = session.query(Job).filter_by(name="waited").one_or_none()
                return row and row.id

        job_id = wait_for(found)
        with unit_of_work(sessions) as session:
            settle_job(session, session.get_one(Job, job_id), JobState.FAILED, why=WHY, now=WallClock().now())

    failing = threading.Thread(target=fail_it)
    failing.start()
    result = type_("job", "submit", path, "--wait", *how)
    failing.join()
    assert result.exit_code == 1
    if how:
        assert json.loads(result.stdout)["status"] == "Failed"
    else:
        assert WHY in result.stderr, "as the script said it: neither folded nor read as markup"
        assert result.stdout.count(WHY) == 1


def test_logs_are_followed_until_the_job_has_ended(type_: Type, work: Work, sessions: Sessions):
    def write(text: str) -> None:
        with unit_of_work(sessions) as session:
            logs.report_log(session, session.get_one(JobProcess, work.process_id).id, text, skipped=0, now=WallClock().now())

    def go_on() -> None:
        time.sleep(0.5)
        write("second\n")
        with unit_of_work(sessions) as session:
            reports.report_process(session, session.get_one(JobProcess, work.process_id).id, ProcessState.STARTED, now=rows.NOW)
            settle_job(session, session.get_one(Job, work.job_id), JobState.STOPPED, why="stopped", now=WallClock().now())

    write("first\n")
    going = threading.Thread(target=go_on)
    going.start()
    result = type_("job", "logs", work.job_id, "--follow")
    going.join()
    lines = result.stdout.splitlines()
    assert [line.rpartition("] ")[2] for line in lines] == ["first", "second"]
    assert lines[0].startswith("[rank 0 i-")


def test_a_control_plane_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("EVERSTEP_URL", url)
    monkeypatch.setenv("EVERSTEP_TOKEN", "x")
    result = CliRunner().invoke(app, ["job", "list"])
    assert result.exit_code == 1
    assert url in result.stderr


def test_without_any_control_plane_the_user_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("EVERSTEP_URL", raising=False)
    monkeypatch.delenv("EVERSTEP_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["job", "list", "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert "everstep up" in result.stderr
