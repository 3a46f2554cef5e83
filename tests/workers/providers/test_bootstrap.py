"""The script that makes a node of a host, run for real on this machine, in a folder of its own."""

from __future__ import annotations

import http.server
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from api.agents.bundle import Bundle
from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE
from tests.workers.providers.bundles import Door, bundle_door, small_bundle
from tests.workers.providers.contract import until
from workers.providers.bootstrap import bootstrap_script

LARGEST_USER_DATA = 16 * 1024
TOKEN = "boot-token-of-the-tests"


@pytest.fixture
def door(packed: Bundle) -> Iterator[Door]:
    with bundle_door(packed) as door:
        yield door


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return small_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def node_id() -> Iterator[str]:
    name = f"i-{uuid.uuid4().hex[:17]}"
    yield name
    while found := processes(name):
        procfs.send(found, signal.SIGKILL)
        procfs.await_end(found, 5)


def processes(node_id: str) -> set[procfs.ProcessKey]:
    return set(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == node_id))


def script(door: Door, node_id: str, folder: Path, **changes) -> str:
    environ = {NODE_ID_VARIABLE: node_id, "EVERSTEP_NODE_ADDRESS": "127.0.0.1", "EVERSTEP_MEMORY_TIER_DIR": str(folder / "memory")}
    wanted = {
        "claim": "claim-1",
        "boot_token": TOKEN,
        "environ": environ,
        "directory": str(folder),
        "python": sys.executable,
        "service": "none",
        "patience_s": 0.0,
    }
    return bootstrap_script(door.url, **{**wanted, **changes})


def run(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh"], input=text, capture_output=True, text=True, timeout=60, check=False)


def environ_of(node_id: str) -> dict[str, str]:
    (key, *_) = processes(node_id)
    return procfs.environment(key.pid)


def test_a_host_becomes_a_node_and_a_second_run_changes_nothing(door: Door, node_id: str, tmp_path: Path):
    text = script(door, node_id, tmp_path / "it's here")
    assert run(text).returncode == 0
    until(lambda: len(processes(node_id)) == 2, "a shepherd and an agent")
    before = processes(node_id)
    assert run(text).returncode == 0
    assert before <= processes(node_id)
    assert (tmp_path / "it's here" / "setup.state").read_text() == "done\n"
    assert environ_of(node_id)["EVERSTEP_BOOT_TOKEN"] == TOKEN
    assert environ_of(node_id)["PYTHONPATH"].endswith(door.bundle.sha256)


def test_a_real_bundle_makes_a_real_agent(node_id: str, tmp_path: Path):
    with bundle_door() as door:
        assert run(script(door, node_id, tmp_path)).returncode == 0
    until(lambda: len(processes(node_id)) >= 2, "a shepherd and an agent")
    log = tmp_path / "node" / "agent.log"
    until(lambda: "control plane" in log.read_text() or "register" in log.read_text(), "an agent that looks for its control plane")


def test_the_bundle_is_asked_for_with_the_token_and_the_claim(door: Door, node_id: str, tmp_path: Path):
    assert run(script(door, node_id, tmp_path, starts=False)).returncode == 0
    assert door.asked == [(f"Bearer {TOKEN}", "claim-1")]
    assert not processes(node_id)


def test_a_bundle_that_the_host_has_is_not_fetched_again(door: Door, node_id: str, tmp_path: Path):
    for _ in range(2):
        assert run(script(door, node_id, tmp_path, starts=False, sha256=door.bundle.sha256)).returncode == 0
    assert len(door.asked) == 1


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_bundle_with_another_checksum_is_not_unpacked(door: Door, node_id: str, tmp_path: Path, is_pinned: bool):
    door.content = door.bundle.content[:-9] + b"tampered!"
    done = run(script(door, node_id, tmp_path, sha256=door.bundle.sha256 if is_pinned else None))
    assert (done.returncode, "checksum" in done.stderr) == (1, True)
    assert "checksum" in (tmp_path / "setup.state").read_text()
    assert not list(tmp_path.glob("bundles/*"))
    assert not processes(node_id)


@pytest.mark.slow
def test_a_busy_control_plane_is_asked_again_and_one_that_refuses_is_not(door: Door, node_id: str, tmp_path: Path):
    door.refusals = [503]
    assert run(script(door, node_id, tmp_path, starts=False, patience_s=5.0)).returncode == 0
    door.refusals = [401]
    done = run(script(door, node_id, tmp_path / "other", starts=False, patience_s=60.0))
    assert (done.returncode, "401" in done.stderr) == (1, True)


def test_what_is_secret_is_in_files_of_the_owner_alone_and_on_no_command_line(door: Door, node_id: str, tmp_path: Path):
    folder = tmp_path / "node"
    assert run(script(door, node_id, folder)).returncode == 0
    until(lambda: len(processes(node_id)) == 2, "a shepherd and an agent")
    holding = {path.name for path in folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()}
    assert holding == {"token", "node.env"}
    for name in holding:
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for key in processes(node_id):
        assert TOKEN not in Path(f"/proc/{key.pid}/cmdline").read_text()


def test_a_host_without_a_python_that_is_new_enough_says_so(door: Door, node_id: str, tmp_path: Path):
    text = script(door, node_id, tmp_path, python="nothing")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("mkdir", "chmod", "tee", "cat"):
        (tools / name).symlink_to(f"/bin/{name}")
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh"], input=text, env={"PATH": str(tools)}, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, "3.11" in (tmp_path / "setup.state").read_text()) == (1, True)


def test_a_script_fits_into_the_user_data_of_an_instance(door: Door, node_id: str, tmp_path: Path):
    environ = {f"EVERSTEP_SOME_VARIABLE_{number}": "x" * 60 for number in range(10)}
    text = script(door, node_id, tmp_path, environ=environ, start_tag="everstep:start", metadata_url="http://169.254.169.254")
    assert len(text.encode()) < LARGEST_USER_DATA


def test_values_are_words_and_never_commands(door: Door, node_id: str, tmp_path: Path):
    mark = tmp_path / "mark"
    wicked = f"$(touch {mark}) `touch {mark}` '; touch {mark}; # \" end"
    environ = {NODE_ID_VARIABLE: node_id, "EVERSTEP_NODE_ADDRESS": "127.0.0.1", "EVERSTEP_IMAGE": wicked}
    assert run(script(door, node_id, tmp_path / "node", environ=environ, starts=False)).returncode == 0
    shown = subprocess.run(
        ["sh", "-c", f'. {shlex.quote(str(tmp_path / "node" / "node.env"))}; printf %s "$EVERSTEP_IMAGE"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == wicked
    assert not mark.exists()


class Metadata(http.server.BaseHTTPRequestHandler):
    """Version 2 of the instance metadata service: nothing without a session token."""

    told: ClassVar = {"instance-id": "", "local-ipv4": "127.0.0.1", "tags/instance/everstep:start": "3"}

    def do_PUT(self) -> None:
        self._answer(
            200 if self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else 404, "session"
        )

    def do_GET(self) -> None:
        found = self.told.get(self.path.removeprefix("/latest/meta-data/"))
        allowed = self.headers["X-aws-ec2-metadata-token"] == "session"
        self._answer(401 if not allowed else 404 if found is None else 200, found or "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def metadata(node_id: str, packed: Bundle) -> Iterator[str]:
    tags = {"tags/instance/everstep:bundle": packed.sha256, "tags/instance/everstep:other-bundle": "0" * 64}
    handler = type("Told", (Metadata,), {"told": {**Metadata.told, **tags, "instance-id": node_id}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_instance_learns_its_name_address_and_start_from_its_metadata(door: Door, node_id: str, tmp_path: Path, metadata: str):
    told = {"environ": {"EVERSTEP_HOST_START": "0"}, "metadata_url": metadata, "start_tag": "everstep:start"}
    done = run(script(door, node_id, tmp_path, **told))
    assert done.returncode == 0, done.stderr
    until(lambda: processes(node_id), "a node of the instance's own name")
    known = environ_of(node_id)
    assert (known["EVERSTEP_NODE_ADDRESS"], known["EVERSTEP_HOST_START"]) == ("127.0.0.1", "3")


def test_an_instance_whose_metadata_do_not_tell_its_start_keeps_what_it_was_told(
    door: Door, node_id: str, tmp_path: Path, metadata: str
):
    told = {"environ": {"EVERSTEP_HOST_START": "7"}, "metadata_url": metadata, "start_tag": "everstep:no-such-tag"}
    done = run(script(door, node_id, tmp_path, **told))
    assert done.returncode == 0, done.stderr
    until(lambda: processes(node_id), "a node of the instance's own name")
    assert environ_of(node_id)["EVERSTEP_HOST_START"] == "7"


def pinned(door: Door, node_id: str, folder: Path, metadata: str, tag: str) -> str:
    return script(door, node_id, folder, metadata_url=metadata, bundle_tag=tag, starts=False)


def test_an_instance_compares_the_bundle_with_what_its_tag_says(door: Door, node_id: str, tmp_path: Path, metadata: str):
    assert run(pinned(door, node_id, tmp_path / "good", metadata, "everstep:bundle")).returncode == 0
    done = run(pinned(door, node_id, tmp_path / "changed", metadata, "everstep:other-bundle"))
    assert (done.returncode, f"not {'0' * 64}" in done.stderr) == (1, True)
    assert not list(tmp_path.glob("changed/bundles/*"))


def test_an_instance_whose_tag_does_not_tell_the_checksum_unpacks_nothing(door: Door, node_id: str, tmp_path: Path, metadata: str):
    done = run(pinned(door, node_id, tmp_path, metadata, tag="everstep:no-such-tag"))
    assert (done.returncode, "everstep:no-such-tag does not tell the bundle's checksum" in done.stderr) == (1, True)
    assert not list(tmp_path.glob("bundles/*"))
    assert door.asked == []


def test_a_host_that_starts_again_needs_only_its_start_script(door: Door, node_id: str, tmp_path: Path):
    """As systemd runs it at each boot."""
    assert run(script(door, node_id, tmp_path, starts=False)).returncode == 0
    assert subprocess.run([tmp_path / "start"], check=False, timeout=20).returncode == 0
    noted = json.loads((tmp_path / "node" / "shepherd.json").read_text())["pid"]
    assert int((tmp_path / "node" / "shepherd.pid").read_text()) == noted
    os.kill(noted, signal.SIGTERM)
    until(lambda: not processes(node_id), "its end")
