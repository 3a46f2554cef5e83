"""The system's own ``ssh`` against a real ``sshd`` on loopback: keys are taken or not, host keys are known or not.

Without both programs these are skipped, and the report says so: then only the stand-in's tests have run, and no key has been tried.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from everstep.embedded import procfs
from everstep.embedded.children import free_port
from everstep.protocol import NODE_ID_VARIABLE
from tests.workers.providers.bundles import Door, bundle_door, small_bundle
from tests.workers.providers.contract import ProviderContract, release_for_good, spec, until
from workers.providers.base import HostRef, NoCapacity, Refused
from workers.providers.static import StaticProvider
from workers.providers.static_inventory import StaticHost
from workers.providers.static_notes import Notes
from workers.providers.static_ssh import Line, NotTrusted, Unreachable

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="NO KEY HAS BEEN TRIED: install openssh-server and openssh-client for these"
)


@dataclass
class Server:
    """One ``sshd``, which stands for as many hosts as have a loopback address and a folder."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def public(self, name: str) -> str:
        """A public key without its comment."""
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdin=subprocess.DEVNULL)


def answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "other_host", "user", "stranger"):
        make_key(folder / name)
    shutil.copy(folder / "user.pub", folder / "authorized")
    settings = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "MaxStartups": "100",
    }
    listens = "".join(f"ListenAddress 127.0.0.{number}\n" for number in range(1, 5))
    (folder / "config").write_text(listens + "".join(f"{name} {value}\n" for name, value in settings.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # without it, root's sshd does not start
    port = free_port()
    with (folder / "log").open("wb") as log:
        command = [SSHD, "-D", "-e", "-f", str(folder / "config"), "-p", str(port)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    server = Server(folder, port, process)
    try:
        until(lambda: answers(port) or process.poll() is not None, "a server")
        assert process.poll() is None, (folder / "log").read_text()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with bundle_door(small_bundle(tmp_path_factory.mktemp("bundle"))) as door:
        yield door


@dataclass
class Lot:
    folder: Path
    server: Server
    door: Door
    hosts: list[StaticHost]

    def host(self, name: str, **members: object) -> StaticHost:
        (self.folder / name).mkdir()
        standard = {
            "address": f"127.0.0.{len(self.hosts) + 1}",
            "port": self.server.port,
            "user": getpass.getuser(),
            "key": self.server.folder / "user",
            "host_key": self.server.public("host"),
            "instance_types": ("ml.c5.large",),
            "directory": str(self.folder / name / "everstep"),
            "memory_directory": str(self.folder / name / "memory"),
            "volumes": str(self.folder / "shared"),
            "python": sys.executable,
            "service": "none",
            "min_free_mib": 1,
        }
        self.hosts.append(StaticHost(name=name, **{**standard, **members}))
        return self.hosts[-1]

    @property
    def line(self) -> Line:
        return Line(self.folder / "known")

    def provider(self) -> StaticProvider:
        store = (self.folder / "store").as_uri()
        return StaticProvider(lambda: tuple(self.hosts), Notes(self.folder / "notes"), self.line, self.door.url, store)


def processes(instance_id: str) -> set[procfs.ProcessKey]:
    return set(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == instance_id))


@pytest.fixture
def lot(tmp_path: Path, server: Server, door: Door) -> Iterator[Lot]:
    (tmp_path / "shared").mkdir()
    lot = Lot(tmp_path, server, door, [])
    yield lot
    for note in lot.provider().notes.all().values():
        found = processes(note.instance_id)
        procfs.send(found, signal.SIGKILL)
        procfs.await_end(found, 5)


@pytest.mark.slow
class TestStaticOverSsh(ProviderContract):
    """All of what a provider must do, over real connections."""

    @pytest.fixture
    def provider(self, lot: Lot) -> StaticProvider:
        for name in ("one", "two"):
            lot.host(name)
        return lot.provider()


def test_a_host_is_taken_used_and_given_back_over_a_real_connection(lot: Lot):
    host = lot.host("one")
    wish = spec()
    provider = lot.provider()
    seen = provider.launch(wish)
    assert (seen.address, seen.is_alive) == ("127.0.0.1", True)
    until(lambda: len(processes(seen.instance_id)) == 2, "a shepherd and an agent, of which no connection is held open")
    assert provider.launch(wish) == seen
    assert provider.reboot(HostRef(wish.claim), replace(wish, start=1)).start == 1
    release_for_good(provider, HostRef(wish.claim))
    assert not processes(seen.instance_id)
    assert not Path(host.directory).exists()


def test_a_host_with_another_key_is_refused_and_nothing_is_run_there(lot: Lot):
    """As an impostor at its address, or a machine that was installed anew."""
    host = lot.host("one", host_key=lot.server.public("other_host"))
    with pytest.raises(Refused, match=r"host one .*its host key is not the one that the inventory has: nothing was run"):
        lot.provider().launch(spec())
    with pytest.raises(NotTrusted):
        lot.line.call(host, "look")
    assert not Path(host.directory).exists()


@pytest.mark.slow
def test_a_host_that_was_taken_and_shows_another_key_is_in_doubt_alive_and_never_forgotten(lot: Lot):
    lot.host("one")
    wish = spec()
    provider = lot.provider()
    provider.launch(wish)
    lot.hosts = [replace(lot.hosts[0], host_key=lot.server.public("other_host"))]
    assert provider.describe(HostRef(wish.claim)).is_alive
    with pytest.raises(NotTrusted):
        provider.release(HostRef(wish.claim))
    lot.hosts = [replace(lot.hosts[0], host_key=lot.server.public("host"))]
    release_for_good(provider, HostRef(wish.claim))


def test_a_host_that_a_file_of_known_hosts_does_not_have_is_refused(lot: Lot):
    known = lot.folder / "known_hosts"
    known.write_text(f"[127.0.0.9]:{lot.server.port} {lot.server.public('host')}\n")
    host = lot.host("one", host_key=None, known_hosts=known)
    with pytest.raises(NotTrusted, match="host key"):
        lot.line.call(host, "look")
    known.write_text(f"[127.0.0.1]:{lot.server.port} {lot.server.public('host')}\n")
    assert lot.line.call(host, "look")["claim"] is None


def test_a_key_that_the_host_does_not_take_is_refused_and_never_asks_for_a_password(lot: Lot):
    lot.host("one", key=lot.server.folder / "stranger")
    with pytest.raises(Refused, match="does not take the key"):
        lot.provider().launch(spec())


def test_a_port_at_which_nobody_listens_is_no_capacity_for_now(lot: Lot):
    host = lot.host("one", port=free_port())
    with pytest.raises(NoCapacity, match="does not answer"):
        lot.provider().launch(spec())
    with pytest.raises(Unreachable, match="Connection refused"):
        lot.line.call(host, "look")


def test_a_host_that_accepts_and_says_nothing_is_given_up_after_the_limit(lot: Lot):
    with closing(socket.socket()) as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        host = lot.host("one", port=deaf.getsockname()[1])
        with pytest.raises(Unreachable):
            lot.line.call(host, "look", limit_s=0.5)
