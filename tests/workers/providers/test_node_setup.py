"""What a host does to become a node, piece by piece: what it is given may be cut short, wicked or late."""

from __future__ import annotations

import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.providers import node_setup
from workers.providers.node_setup import Failed


def packed(*members: tarfile.TarInfo) -> tarfile.TarFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return tarfile.open(fileobj=io.BytesIO(buffer.getvalue()), mode="r:gz")


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type = kind
    found.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    found.size = 1 if kind == tarfile.REGTYPE else 0
    found.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    return found


@pytest.mark.parametrize("has_filters", [True, False])
def test_a_bundle_is_unpacked_by_a_python_with_filters_and_one_without(tmp_path: Path, has_filters: bool):
    tar = packed(member("agent", tarfile.DIRTYPE), member("agent/loop.py"))
    node_setup._unpack(tar, tmp_path / "code", has_filters=has_filters)
    assert (tmp_path / "code" / "agent" / "loop.py").read_text() == "x"


@pytest.mark.parametrize(
    "wicked",
    [member("/etc/x"), member("../x"), member("a/../../x"), member("link", tarfile.SYMTYPE), member("pipe", tarfile.FIFOTYPE)],
)
def test_a_python_without_filters_unpacks_nothing_of_a_wicked_bundle(tmp_path: Path, wicked: tarfile.TarInfo):
    with pytest.raises(Failed, match="the bundle holds"):
        node_setup._unpack(packed(member("good"), wicked), tmp_path / "code", has_filters=False)
    assert not (tmp_path / "code").exists()


class Broken(http.server.BaseHTTPRequestHandler):
    """The first answer to a GET breaks off in its middle."""

    server: Server

    def do_PUT(self) -> None:
        self._answer(b"session", 7)

    def do_GET(self) -> None:
        self.server.asked += 1
        self._answer(b"whole", 5 if self.server.asked > 1 else 99)

    def _answer(self, text: bytes, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.send_header("Everstep-Bundle-Sha256", "checksum")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Broken)
        self.asked = 0


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_bundle_that_breaks_off_is_fetched_again(tmp_path: Path, server: Server):
    (tmp_path / "token").write_text("t")
    told = {"api_url": f"http://127.0.0.1:{server.server_port}", "claim": "c", "patience_s": 10.0}
    assert node_setup._fetched(told, tmp_path) == (b"whole", "checksum")
    assert server.asked == 2


def test_metadata_that_break_off_are_asked_for_again(server: Server):
    url = f"http://127.0.0.1:{server.server_port}"
    assert node_setup._ask_metadata(url, "instance-id", patience_s=10.0) == "whole"
    assert server.asked == 2


def test_a_setup_that_fails_in_a_way_that_nobody_has_foreseen_says_so_in_its_state(tmp_path: Path):
    (tmp_path / "told.json").write_text(json.dumps({"directory": str(tmp_path)}))
    assert node_setup._entry([str(tmp_path / "told.json")]) == 1
    assert (tmp_path / "setup.state").read_text() == "failed: KeyError: 'environ'\n"
