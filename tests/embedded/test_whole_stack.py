"""The embedded stack as a user gets it, every process real: up, kills, up again, down."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime

import psycopg
import pytest

from everstep.embedded import probes, procfs, state
from everstep.embedded.home import Home
from tests.embedded.running import ENVIRONMENT, eventually

SERVICES = ("postgres", "valkey", "api", "worker-fast", "worker-slow", "beat", "relay")


def everstep(*arguments, check=True):
    told = subprocess.run(
        [sys.executable, "-m", "everstep.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd="/",
        timeout=110,
        check=False,
    )
    assert told.returncode == 0 or not check, told.stdout + told.stderr
    return told


def up(home, *arguments):
    return json.loads(everstep("up", "--detach", "--json", "--home", str(home.root), "--port", "0", *arguments).stdout)


def down(home):
    return json.loads(everstep("down", "--json", "--home", str(home.root)).stdout)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = Home.at(tmp_path_factory.mktemp("whole") / "home")
    up(home)
    yield home
    down(home)


def is_ready(home):
    found = state.read(home)
    answer = probes.http_status(found.port, "/readyz")
    whole = all(service.phase is state.Phase.READY for service in found.services.values())
    return whole and isinstance(answer, tuple) and answer[0] == 200


def test_every_service_is_ready_and_status_says_so(home):
    document = json.loads(everstep("status", "--json", "--home", str(home.root)).stdout)
    assert document["ready"] is True
    rows = {row["name"]: row for row in document["services"]}
    assert set(rows) == {*SERVICES, "migrate"}
    assert all(rows[name]["pid"] and rows[name]["version"] for name in SERVICES)
    assert document["readyz"]["status"] == 200


def test_a_second_up_attaches(home):
    before = state.read(home)
    assert up(home)["supervisor_pid"] == before.supervisor_pid
    assert state.read(home).processes() == before.processes()


def test_up_on_another_port_is_refused_while_it_runs(home):
    told = everstep("up", "--detach", "--home", str(home.root), "--port", "1", check=False)
    assert told.returncode == 1
    assert f"runs on port {state.read(home).port}" in told.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_a_killed_service_comes_back_and_work_flows_again(home, name):
    before = state.read(home).services[name]
    os.kill(before.pid, signal.SIGKILL)
    eventually(lambda: (now := state.read(home).services[name]).restarts > before.restarts and now.pid, seconds=20)
    came_back = datetime.now(UTC)
    eventually(lambda: is_ready(home), seconds=40)
    eventually(lambda: oldest_pulse(home) > came_back, seconds=40)


def test_up_repairs_a_stack_whose_supervisor_was_killed(home):
    before = state.read(home)
    os.kill(before.supervisor_pid, signal.SIGKILL)
    after = up(home)
    assert after["port"] == before.port
    assert not [key for key in before.processes() if procfs.is_alive(key)]
    assert is_ready(home)


def test_no_file_of_the_home_is_readable_by_others(home):
    found = [path for path in home.root.rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    assert not [path for path in found if path.suffix == ".json"]


def test_down_leaves_no_process_and_a_start_in_the_foreground_keeps_the_data_and_ends_on_ctrl_c(home):
    key = home.credentials.read_text()
    keys = [*state.read(home).processes(), state.read(home).supervisor]
    down(home)
    assert not [key for key in keys if procfs.is_alive(key)]
    assert not list(procfs.find(lambda environment: environment.get("EVERSTEP_STACK_HOME") == str(home.root)))
    began = time.monotonic()
    with foreground(home) as process:
        assert json.loads(process.stdout.readline())["url"] == state.read(home).url
        took = time.monotonic() - began
        assert took < 30, f"{took:.1f} s"  # 5 s on a quiet machine, which the benchmark measures
        assert home.credentials.read_text() == key
        keys = state.read(home).processes()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
    assert not [key for key in keys if procfs.is_alive(key)]


def foreground(home):
    command = [sys.executable, "-m", "everstep.cli.main", "up", "--json", "--home", str(home.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd="/", start_new_session=True)


def oldest_pulse(home):
    """When the lane that has been silent the longest was last served: beat, broker, worker and database work together."""
    url = state.read(home).database_url.replace("+psycopg", "")
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            return connection.execute("SELECT min(at) FROM pulse").fetchone()[0]
    except psycopg.OperationalError:
        return datetime.min.replace(tzinfo=UTC)
