"""The two real servers, alone: throw-away ones, and what a crash leaves."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
import redis

from everstep.embedded import binaries, probes, procfs
from everstep.embedded.children import free_port, spawn, stop, unprivileged_account
from everstep.embedded.errors import StackError
from everstep.embedded.postgres import PostgresServer, ephemeral_postgres
from everstep.embedded.valkey import ephemeral_valkey
from tests.embedded.running import ENVIRONMENT, eventually


def raw(url):
    return url.replace("+psycopg", "")


@pytest.fixture
def server(tmp_path):
    return PostgresServer(tmp_path / "postgres", free_port(), "long-word", binaries.postgres_bin({}))


@pytest.fixture
def started(server, tmp_path):
    """Starts the server again and again; ends what it has started."""
    alive = []

    def start():
        server.prepare()
        command = server.command()
        with (tmp_path / "log").open("ab") as log:
            process = spawn(command, log)
        alive.append((process, command))
        eventually(lambda: server.why_not_ready() is None)
        return process

    yield start
    for process, command in alive:
        stop(process, command)
        for descriptor in command.keep_fds:
            os.close(descriptor)


def test_a_throw_away_postgres_is_version_18_and_starts_in_seconds(tmp_path):
    began = time.monotonic()
    with ephemeral_postgres(tmp_path) as url, psycopg.connect(raw(url)) as connection:
        assert time.monotonic() - began < 10
        assert connection.execute("SHOW server_version").fetchone()[0].startswith("18.")
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_throw_away_postgres_is_gone_after_its_block(tmp_path):
    with ephemeral_postgres(tmp_path) as url:
        pass
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(raw(url), connect_timeout=2)


def test_postgres_refuses_a_wrong_password(tmp_path):
    with ephemeral_postgres(tmp_path) as url:
        wrong = raw(url).replace("everstep:", "everstep:x", 1)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)


def test_postgres_listens_on_loopback_tcp_alone(tmp_path):
    with ephemeral_postgres(tmp_path) as url, psycopg.connect(raw(url)) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
        assert connection.execute("SHOW unix_socket_directories").fetchone() == ("",)


def test_postgres_never_runs_as_root(started):
    process = started()
    assert Path(f"/proc/{process.pid}").stat().st_uid != 0


def test_an_embedded_postgres_keeps_its_rows_over_a_kill(server, started):
    process = started()
    server.create_database()
    with psycopg.connect(raw(server.dsn)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 42 AS x")
    process.kill()
    process.wait()
    started()
    with psycopg.connect(raw(server.dsn)) as connection:
        assert connection.execute("SELECT x FROM t").fetchone() == (42,)


def test_a_lock_file_that_names_a_living_stranger_does_not_stop_a_start(server, started):
    process = started()
    process.kill()
    process.wait()
    lock = server.data / "postmaster.pid"
    lines = lock.read_text().splitlines()
    lock.write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
    started()
    assert procfs.is_alive(os.getppid())


def test_a_server_that_was_left_over_the_same_data_is_ended_before_a_start(server, started):
    first = started()
    second = started()
    assert first.poll() == 0
    assert second.poll() is None


def test_a_data_directory_half_made_by_a_crash_is_made_anew(server, started):
    half = server.directory / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    started()
    assert not half.exists()


def test_data_of_another_major_version_are_refused_with_a_way_out(server):
    server.prepare()
    (server.data / "PG_VERSION").write_text("15\n")
    with pytest.raises(StackError, match=r"holds data of Postgres 15.*dump"):
        server.prepare()


def test_creating_the_database_twice_is_fine(server, started):
    started()
    server.create_database()
    server.create_database()


def test_a_password_that_is_not_that_of_the_data_is_told(server, started):
    started()
    other = PostgresServer(server.directory, server.port, "another", server.binaries)
    with pytest.raises(StackError, match="password authentication failed"):
        other.create_database()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account to run it as")
def test_programs_that_the_account_cannot_reach_are_copied_to_where_it_can(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    account = unprivileged_account(data)
    original = binaries.postgres_bin({}).parent
    closed = tmp_path / "closed" / "package"
    shutil.copytree(original, closed / original.name, symlinks=True)
    shutil.copytree(original.parent.with_name(f"{original.parent.name}.libs"), closed.with_name("package.libs"))
    closed.parent.chmod(0o700)
    assert not binaries.runs_as(account, closed / original.name / "bin")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        copied = binaries.reachable_for(account, closed / original.name / "bin", shared=Path(place) / "shared")
        assert binaries.runs_as(account, copied)
        again = binaries.reachable_for(account, closed / original.name / "bin", shared=Path(place) / "shared")
        assert again == copied


def test_a_named_directory_without_postgres_is_passed_over():
    assert binaries.postgres_bin({"EVERSTEP_PG_BIN": "/nowhere"}) == binaries.postgres_bin({})


def test_a_throw_away_valkey_asks_for_its_password_and_keeps_every_message(tmp_path):
    with ephemeral_valkey(tmp_path) as url, redis.Redis.from_url(url) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert client.config_get("appendonly")["appendonly"] == "yes"
        assert "WRONGPASS" in probes.valkey(client.connection_pool.connection_kwargs["port"], "wrong")


def test_no_password_shows_in_the_list_of_processes(tmp_path):
    with ephemeral_postgres(tmp_path) as dsn, ephemeral_valkey(tmp_path) as broker:
        secrets = [url.split(":")[2].split("@")[0] for url in (dsn, broker)]
        listed = [_arguments(key.pid) for key in _processes_in(os.path.realpath(tmp_path))]
        assert len(listed) >= 2
        assert not [line for line in listed if any(secret in line for secret in secrets)]


def test_servers_end_when_the_process_that_started_them_is_killed(tmp_path):
    program = (
        "import sys, time; from pathlib import Path\n"
        "from everstep.embedded.postgres import ephemeral_postgres\n"
        "from everstep.embedded.valkey import ephemeral_valkey\n"
        "d = Path(sys.argv[1])\n"
        "with ephemeral_postgres(d), ephemeral_valkey(d):\n"
        "    print('up', flush=True); time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=ENVIRONMENT, cwd="/")
    with owner:
        owner.stdout.readline()
        data = os.path.realpath(tmp_path)
        children = _processes_in(data)
        assert len(children) >= 2
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not [key for key in children if procfs.is_alive(key)], seconds=10)
    assert not (tmp_path / "postgres" / "data" / "postmaster.pid").exists(), "it was not a clean end"


def _processes_in(directory):
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [procfs.key_of(pid) for pid in pids if (procfs.working_directory(pid) or "").startswith(directory)]


def _arguments(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
