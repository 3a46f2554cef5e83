"""Credentials, state, logs, ports: what lies in the home."""

import base64
import json
import os
import re
import stat
import subprocess
import time

import pytest

from everstep.embedded import credentials, logs, ports, procfs, settings, state
from everstep.embedded.children import free_port
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.state import Phase, ServiceState, StackState


@pytest.fixture
def home(tmp_path):
    made = Home.at(tmp_path / "home")
    made.create()
    return made


def test_credentials_have_the_shapes_that_clients_expect(home):
    keys = credentials.load_or_create(home)
    assert re.fullmatch(r"AKIA[A-Z2-7]{16}", keys.access_key_id)
    assert re.fullmatch(r"[A-Za-z0-9]{40}", keys.secret_access_key)
    assert len(base64.b64decode(keys.master_key)) == 32
    assert stat.S_IMODE(home.credentials.stat().st_mode) == 0o600


def test_credentials_are_made_once(home):
    assert credentials.load_or_create(home) == credentials.load_or_create(home)


def test_no_secret_shows_when_credentials_are_printed(home):
    keys = credentials.load_or_create(home)
    assert keys.access_key_id in repr(keys)
    assert keys.secret_access_key not in repr(keys)
    assert keys.token not in repr(keys)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"access_key_id": "x"}'])
def test_damaged_credentials_are_never_replaced_silently(home, text):
    home.credentials.write_text(text)
    with pytest.raises(StackError, match="is damaged"):
        credentials.load_or_create(home)
    assert home.credentials.read_text() == text


def test_state_is_read_as_it_was_written(home):
    written = StackState(port=1, database_port=2, broker_port=3, phase=Phase.READY, supervisor_pid=4, supervisor_started=5)
    written.services["api"] = ServiceState(Phase.CRASHED, pid=6, started=7, restarts=8, why="killed")
    state.write(home, written)
    assert state.read(home) == written


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"services": {}, "phase": "odd"}', '{"services": 3, "phase": "ready"}'])
def test_a_state_file_that_makes_no_sense_counts_as_none(home, text):
    home.state.write_text(text)
    assert state.read(home) is None


def test_a_reused_process_id_is_not_taken_for_the_old_process():
    own = procfs.key_of(os.getpid())
    assert procfs.is_alive(own)
    assert not procfs.is_alive(procfs.ProcessKey(own.pid, own.started - 1))


def test_a_zombie_counts_as_dead():
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 5
    while procfs.is_alive(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not procfs.is_alive(child.pid)
    child.wait()


def test_a_large_log_is_turned_over_and_three_old_ones_are_kept(home):
    for number in range(6):
        with logs.open_log(home.logs, "api", largest_bytes=10) as log:
            log.write(f"start number {number}\n".encode())
    kept = sorted(path.name for path in home.logs.iterdir())
    assert kept == ["api.log", "api.log.1", "api.log.2", "api.log.3"]
    assert logs.tail(home.logs / "api.log") == "start number 5"
    assert logs.tail(home.logs / "api.log.3") == "start number 2"


def test_ports_of_the_last_start_are_kept():
    port = free_port()
    assert ports.of_the_api(None, port) == port
    assert ports.of_the_api(0, port) == port
    assert ports.of_the_api(0, None) != 0
    other = free_port()
    assert ports.of_the_api(other, port) == other


def test_a_server_named_in_the_environment_takes_the_place_of_the_embedded_one():
    told = settings.StackSettings.from_environ({"EVERSTEP_DATABASE_URL": "postgresql+psycopg://x", "EVERSTEP_NODE_ID": "i-1"})
    assert told.database_url == "postgresql+psycopg://x"
    assert told.broker_url is None
    assert "EVERSTEP_NODE_ID" not in told.inherited


def test_a_wheel_alone_has_no_control_plane(tmp_path):
    assert settings.checkout_root(tmp_path / "everstep") is None


def test_the_state_file_is_plain_json_for_other_programs(home):
    state.write(home, StackState(port=1, database_port=2, broker_port=3))
    assert json.loads(home.state.read_text())["port"] == 1
