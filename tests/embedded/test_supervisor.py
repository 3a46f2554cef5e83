"""The supervisor with both real servers: order, crashes, kills, ends."""

import os
import signal
import socket
import stat
from pathlib import Path

import psycopg
import pytest

from everstep.embedded import control, credentials, procfs, state
from everstep.embedded.children import Command
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.service import Service
from everstep.embedded.state import Phase
from tests.embedded.running import RunningStack, described, eventually, running


@pytest.fixture
def home(tmp_path):
    return Home.at(tmp_path / "home")


def dsn(home):
    password, port = credentials.load(home).database_password, state.read(home).database_port
    return f"postgresql://everstep:{password}@127.0.0.1:{port}/everstep"


def is_stopped(pid):
    """Whether each of its threads stands still: a signal sent before that may yet be obeyed by one that runs."""
    return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in Path(f"/proc/{pid}/task").glob("*/stat"))


def test_a_service_starts_only_after_those_it_needs_are_ready(home):
    with running(home) as stack:
        order = [line for line in stack.lines if line.endswith(("ready", "starting"))]
        assert order.index("web starting") > order.index("postgres ready")
        assert order.index("web starting") > order.index("valkey ready")
        assert order.index("web starting") > order.index("once ready")
        assert order[-1] == "web ready"


def test_after_an_end_nothing_is_left(home):
    with running(home) as stack:
        keys = stack.state().processes()
        assert len(keys) == 3
        assert stack.close() == 0
    assert not [key for key in keys if procfs.is_alive(key)]
    assert state.read(home).phase is Phase.STOPPED
    assert not (home.root / "postgres" / "data" / "postmaster.pid").exists()


def test_everything_in_the_home_is_for_its_owner_only(home):
    with running(home):
        pass
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    for path in (home.credentials, home.state):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["postgres", "valkey", "web"])
def test_a_killed_service_is_started_again(home, name):
    with running(home) as stack:
        before = stack.key(name)
        os.kill(before.pid, signal.SIGKILL)
        stack.until(f"{name} crashed")
        stack.until(f"{name} ready")
        after = stack.state().services[name]
        assert after.key != before
        assert after.restarts == 1
        others = [other for other in ("postgres", "valkey", "web") if other != name]
        assert all(stack.state().services[other].restarts == 0 for other in others)


def test_rows_outlive_a_kill_of_postgres(home):
    with running(home) as stack:
        with psycopg.connect(dsn(home)) as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS x")
        os.kill(stack.key("postgres").pid, signal.SIGKILL)
        stack.until("postgres crashed")
        stack.until("postgres ready")
        with psycopg.connect(dsn(home)) as connection:
            assert connection.execute("SELECT x FROM t").fetchone() == (7,)


def test_all_services_end_when_the_supervisor_is_killed(home):
    stack = RunningStack(home).ready()
    keys = stack.state().processes()
    stack.kill()
    eventually(lambda: not [key for key in keys if procfs.is_alive(key)], seconds=10)


def test_a_second_start_repairs_what_a_killed_supervisor_has_left_and_keeps_ports_and_keys(home):
    stack = RunningStack(home).ready()
    before, keys = described(home), home.credentials.read_text()
    stack.kill()
    with running(home):
        after = described(home)
        assert {name: after[name] for name in ("port", "database_port", "broker_port")} == {
            name: before[name] for name in ("port", "database_port", "broker_port")
        }
        assert home.credentials.read_text() == keys


def test_a_start_ends_services_that_outlived_a_killed_supervisor(home):
    """Even those that ignore the kernel's word: found by their environment, without any note of ours."""
    with running(home) as stack:
        web = stack.key("web")
        os.kill(web.pid, signal.SIGSTOP)  # it cannot obey the signal of its parent's death
        eventually(lambda: is_stopped(web.pid), seconds=10)
        stack.kill()
        home.state.unlink()
        assert procfs.is_alive(web)
        with running(home):
            eventually(lambda: not procfs.is_alive(web))


def test_a_second_supervisor_is_refused_and_the_first_is_left_alone(home):
    with running(home) as stack:
        other = RunningStack(home)
        assert "AlreadyRunningError" in other.until("FAILED")
        assert other.process.wait(10) == 1
        other.process.stdout.close()
        assert all(service.phase is Phase.READY for service in stack.state().services.values())


def test_a_service_that_never_starts_fails_the_start_with_its_own_last_words(home):
    stack = RunningStack(home, "broken")
    told = stack.until("FAILED")
    assert "broken: it does not start: ended with status 3" in told
    assert "the reason" in stack.process.stdout.read()
    assert stack.process.wait(30) == 1
    stack.process.stdout.close()
    assert state.read(home).processes() == []


def test_a_busy_port_is_told_with_the_option_that_helps(home):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        stack = RunningStack(home, port=port)
        assert f"port {port} is in use by another program: choose another one with --port" in stack.until("FAILED")
        stack.close()


def test_a_task_that_fails_is_not_tried_again(home):
    failing = Service(
        "migrate", lambda: Command(argv=["sh", "-c", "echo tried; exit 1"], env={"PATH": "/usr/bin:/bin"}), is_task=True
    )
    with pytest.raises(StackError, match="migrate: it does not start: ended with status 1"):
        control.run_services(home, 0, lambda _: ([failing], lambda: None), tell=lambda *_: None, on_ready=lambda _: None)
    assert (home.logs / "migrate.log").read_text() == "tried\n"


def test_down_ends_a_running_stack(home):
    stack = RunningStack(home).ready()
    keys = [*stack.state().processes(), stack.state().supervisor]
    ended = control.shut_down(home)
    assert ended.was_running
    assert not [key for key in keys if procfs.is_alive(key)]
    stack.close()


def test_down_ends_what_a_killed_supervisor_left(home):
    stack = RunningStack(home).ready()
    keys = stack.state().processes()
    stack.kill()
    control.shut_down(home)
    assert not [key for key in keys if procfs.is_alive(key)]


def test_down_where_nothing_ever_ran_is_fine(home):
    assert control.shut_down(home) == control.Ended(was_running=False, nodes=0)
