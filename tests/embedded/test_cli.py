"""The commands as a shell sees them: exit status, standard output, what goes to standard error."""

import json
import subprocess
import sys

import pytest

from everstep.embedded import credentials, state
from everstep.embedded.home import Home
from everstep.embedded.state import StackState
from tests.embedded.running import ENVIRONMENT, running


@pytest.fixture
def home(tmp_path):
    return Home.at(tmp_path / "it's home")


def everstep(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "everstep.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | environment,
        cwd="/",
        timeout=60,
        check=False,
    )


def test_status_of_an_empty_home_says_how_to_start(home):
    told = everstep("status", "--home", str(home.root), "--json")
    document = json.loads(told.stdout)
    assert told.returncode == 3
    assert document["ready"] is False
    assert "everstep up" in document["why"]
    assert document["versions"]["postgres"].startswith("18.")
    assert not home.root.exists(), "asking must not make anything"


def test_status_names_every_service_with_its_process_and_version(home):
    with running(home) as stack:
        document = json.loads(everstep("status", "--home", str(home.root), "--json").stdout)
        rows = {row["name"]: row for row in document["services"]}
        assert rows["postgres"]["pid"] == stack.key("postgres").pid
        assert rows["postgres"]["ready"] is True
        assert rows["postgres"]["version"].startswith("18.")
        assert document["readyz"]["status"] == 404, "this small stack serves no /readyz, and status must say so"
        assert "/readyz answers 404" in document["why"]


def test_status_after_a_killed_supervisor_says_what_repairs_it(home):
    with running(home) as stack:
        stack.kill()
        told = everstep("status", "--home", str(home.root))
        assert told.returncode == 3
        assert "the supervisor has died; `everstep up` repairs the stack" in told.stdout


def test_env_prints_lines_that_a_shell_can_run(home):
    home.create()
    keys = credentials.load_or_create(home)
    state.write(home, StackState(port=8765, database_port=1, broker_port=2))
    lines = everstep("env", "--home", str(home.root)).stdout
    script = (
        lines + '\necho "$AWS_ENDPOINT_URL_SAGEMAKER|$AWS_ACCESS_KEY_ID|$AWS_SECRET_ACCESS_KEY|$AWS_DEFAULT_REGION|$EVERSTEP_TOKEN"'
    )
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    expected = ["http://127.0.0.1:8765", keys.access_key_id, keys.secret_access_key, "us-east-1", keys.token]
    assert shell.stdout.strip().split("|") == expected
    names = [line.split("=")[0] for line in lines.splitlines()]
    assert names == [
        "export AWS_ENDPOINT_URL_SAGEMAKER",
        "export AWS_ENDPOINT_URL_EVERSTEP",
        "export AWS_ACCESS_KEY_ID",
        "export AWS_SECRET_ACCESS_KEY",
        "export AWS_DEFAULT_REGION",
        "export EVERSTEP_URL",
        "export EVERSTEP_TOKEN",
    ]


def test_env_without_a_stack_fails_on_standard_error_alone(home):
    told = everstep("env", "--home", str(home.root))
    assert told.returncode == 1
    assert told.stdout == ""
    assert "start one with `everstep up`" in told.stderr


def test_down_of_nothing_succeeds(home):
    told = everstep("down", "--home", str(home.root), "--json")
    assert told.returncode == 0
    assert json.loads(told.stdout) == {"home": str(home.root), "was_running": False, "nodes_ended": 0}


def test_down_ends_a_stack_and_says_so(home):
    with running(home):
        told = everstep("down", "--home", str(home.root))
        assert told.returncode == 0
        assert told.stdout == f"Ended the stack in {home.root}.\n"


def test_up_in_a_home_with_damaged_credentials_changes_nothing_and_says_why(home):
    home.create()
    home.credentials.write_text("{")
    told = everstep("up", "--detach", "--home", str(home.root), "--port", "0", "--json")
    assert told.returncode == 1
    assert "is damaged" in json.loads(told.stdout)["error"]
    assert "is damaged" in told.stderr
    assert home.credentials.read_text() == "{"


@pytest.mark.parametrize("command", ["up", "up --detach", "demo", "status", "env", "down", "job list"])
def test_a_home_that_cannot_be_one_is_named_by_every_command_with_what_to_do(command, tmp_path):
    (tmp_path / "file").write_text("in the way of a directory")
    picture = ["--picture", str(tmp_path / "page.png")] if command == "demo" else []
    told = everstep(*command.split(), *picture, "--home", str(tmp_path / "file" / "home"), MPLCONFIGDIR=str(tmp_path))
    said = told.stderr + told.stdout
    assert told.returncode == 1
    assert f"{tmp_path}/file/home" in said
    assert "--home DIR" in said
    assert len(said.splitlines()) <= 2, "the demonstration says first where it would have played"


def test_files_where_the_user_stands_do_not_get_into_the_supervisor(home, tmp_path):
    home.create()
    home.credentials.write_text("{")
    (tmp_path / "asyncio.py").write_text("raise SystemExit('shadowed')")
    command = [sys.executable, "-P", "-m", "everstep.cli.main", "up", "--detach", "--home", str(home.root), "--port", "0"]
    told = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert "is damaged" in told.stderr


def test_up_refuses_a_port_that_is_no_port(home):
    told = everstep("up", "--home", str(home.root), "--port", "70000")
    assert told.returncode == 2
    assert told.stdout == ""


def test_a_command_whose_library_is_missing_says_what_to_install_and_the_others_work():
    program = "import sys; sys.modules['matplotlib'] = None; from everstep.cli.main import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", program]
    asked = subprocess.run([*command, "demo", "--json"], capture_output=True, text=True, env=ENVIRONMENT, cwd="/", check=False)
    assert asked.returncode == 1
    assert asked.stdout == ""
    assert "`demo` needs matplotlib: pip install" in asked.stderr
    listed = subprocess.run([*command, "--help"], capture_output=True, text=True, env=ENVIRONMENT, cwd="/", check=True)
    assert "status" in listed.stdout


def test_the_stack_commands_do_not_wait_for_heavy_imports():
    program = (
        "import sys, everstep.cli.main; print([m for m in ('torch', 'boto3', 'matplotlib', 'sqlalchemy') if m in sys.modules])"
    )
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, cwd="/", check=True)
    assert asked.stdout.strip() == "[]"
