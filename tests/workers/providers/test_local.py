from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE
from tests.workers.providers.contract import ProviderContract, release_for_good, spec, until
from workers.providers.base import HostRef, Volume
from workers.providers.local import LocalProvider

NOWHERE = "http://127.0.0.1:9"
"""The agents of these tests find no control plane, and go on trying."""


@pytest.fixture
def make(tmp_path):
    made = []

    def make(name: str = "hosts", capacity: int = 2) -> LocalProvider:
        environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        made.append(LocalProvider(tmp_path / name, NOWHERE, (tmp_path / "store").as_uri(), capacity, environ, tmp_path / "memory"))
        return made[-1]

    yield make
    for provider in made:
        for host in provider.hosts():
            release_for_good(provider, HostRef(host.claim))


@pytest.fixture
def provider(make):
    return make()


def processes(instance_id: str) -> set[procfs.ProcessKey]:
    return set(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == instance_id))


def command(key: procfs.ProcessKey) -> list[str]:
    try:
        return Path(f"/proc/{key.pid}/cmdline").read_text().split("\0")
    except OSError:  # it has ended since it was found
        return []


def agents(instance_id: str) -> list[procfs.ProcessKey]:
    return [key for key in processes(instance_id) if procfs.is_alive(key) and "agent" in command(key)]


def environ(key: procfs.ProcessKey) -> dict[str, str]:
    lines = Path(f"/proc/{key.pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def kill_all(instance_id: str) -> None:
    while found := processes(instance_id):
        procfs.send(found, signal.SIGKILL)
        procfs.await_end(found, 5)


class TestLocal(ProviderContract):
    @pytest.fixture
    def provider(self, make):
        return make()

    def test_a_host_of_which_nothing_is_alive_is_dead_and_not_missing(self, provider):
        wish = spec()
        host = provider.launch(wish)
        kill_all(host.instance_id)
        assert not provider.describe(HostRef(wish.claim)).is_alive

    def test_a_host_whose_first_process_died_is_alive_as_long_as_another_one_is(self, provider):
        wish = spec()
        host = provider.launch(wish)
        until(lambda: len(processes(host.instance_id)) == 2, "an agent")
        shepherd = json.loads((provider.directory / host.instance_id / "shepherd.json").read_text())
        os.kill(shepherd["pid"], signal.SIGKILL)
        assert provider.describe(HostRef(wish.claim)).is_alive
        kill_all(host.instance_id)
        assert not provider.describe(HostRef(wish.claim)).is_alive

    def test_a_dead_host_is_not_brought_back_by_another_launch(self, provider):
        wish = spec()
        kill_all(provider.launch(wish).instance_id)
        assert not provider.launch(wish).is_alive

    def test_a_released_host_leaves_neither_process_nor_directory(self, provider):
        wish = spec()
        host = provider.launch(wish)
        until(lambda: len(processes(host.instance_id)) == 2, "an agent")
        release_for_good(provider, HostRef(wish.claim))
        assert not processes(host.instance_id)
        assert not (provider.directory / host.instance_id).exists()

    def test_a_node_s_memory_is_told_to_its_agent_and_goes_with_each_start_and_with_the_node(self, provider):
        wish = spec()
        host = provider.launch(wish)
        folder = provider.memory_root / host.instance_id
        until(lambda: agents(host.instance_id), "an agent")
        (agent,) = agents(host.instance_id)
        assert environ(agent)["EVERSTEP_MEMORY_TIER_DIR"] == str(folder)
        (folder / "ns" / "job" / "7").mkdir(parents=True)
        again = replace(wish, start=1)
        provider.reboot(HostRef(wish.claim), again)
        assert not folder.exists(), "memory outlived a reboot"
        (folder / "ns" / "job" / "8").mkdir(parents=True)
        provider.reboot(HostRef(wish.claim), again)
        assert folder.exists(), "a reboot that has been done already is not done again"
        release_for_good(provider, HostRef(wish.claim))
        assert not folder.exists()

    def test_a_note_that_cannot_be_read_hides_no_other_host(self, provider):
        """As after a loss of power, or while another worker releases it."""
        host = provider.launch(spec())
        place = provider.directory / f"i-{'0' * 17}"
        place.mkdir()
        (place / "host.json").touch()
        assert [seen.claim for seen in provider.hosts()] == [host.claim]

    def test_hosts_of_two_homes_have_different_addresses(self, make):
        wish = spec()
        one, two = make("one").launch(wish), make("two").launch(wish)
        assert one.instance_id == two.instance_id
        assert one.address != two.address

    def test_one_claim_launched_by_several_workers_at_once_is_one_host(self, provider):
        wish = spec()
        with ThreadPoolExecutor(4) as pool:
            hosts = list(pool.map(provider.launch, [wish] * 4))
        assert len(set(map(str, hosts))) == 1
        until(lambda: len(agents(hosts[0].instance_id)) == 1, "one agent")

    def test_a_launch_that_was_cut_short_is_taken_up_again(self, provider):
        wish = spec()
        host = provider.launch(wish)
        kill_all(host.instance_id)
        (provider.directory / host.instance_id / "shepherd.json").unlink()
        again = provider.launch(wish)
        assert again.is_alive
        assert again.address == host.address

    def test_a_host_is_no_child_of_ours_and_in_a_session_of_its_own(self, provider):
        host = provider.launch(spec())
        shepherd = json.loads((provider.directory / host.instance_id / "shepherd.json").read_text())["pid"]
        assert os.getsid(shepherd) == shepherd
        with pytest.raises(ChildProcessError):
            os.waitpid(shepherd, os.WNOHANG)

    def test_a_reboot_ends_every_process_and_starts_others_on_the_same_disk(self, provider):
        wish = spec()
        host = provider.launch(wish)
        until(lambda: agents(host.instance_id), "an agent")
        before = processes(host.instance_id)
        kept = provider.directory / host.instance_id / "state" / "kept"
        kept.write_text("data")
        provider.reboot(HostRef(wish.claim), replace(wish, start=1))
        until(lambda: agents(host.instance_id), "an agent")
        assert not before & processes(host.instance_id)
        assert kept.read_text() == "data"
        assert environ(agents(host.instance_id)[0])["EVERSTEP_HOST_START"] == "1"

    def test_a_reimage_leaves_nothing_on_the_disk_and_tells_its_image(self, provider):
        wish = spec()
        host = provider.launch(wish)
        place = provider.directory / host.instance_id
        provider.attach_volume(HostRef(wish.claim), Volume("vol-00000001", "/dev/xvdf"))
        (place / "state" / "lifecycle.json").write_text("{}")
        (place / "mine").mkdir()
        provider.reimage(HostRef(wish.claim), replace(wish, start=1, image="2.0.0"))
        until(lambda: agents(host.instance_id), "an agent")
        assert not (place / "state" / "lifecycle.json").exists()
        assert not (place / "mine").exists()
        told = environ(agents(host.instance_id)[0])
        assert told["EVERSTEP_IMAGE"] == "2.0.0"
        assert (Path(told["EVERSTEP_VOLUMES"]) / "xvdf").resolve() == (provider.directory.parent / "volumes" / "vol-00000001")

    def test_a_restart_that_was_cut_short_is_taken_up_again(self, provider):
        wish = spec()
        host = provider.launch(wish)
        place = provider.directory / host.instance_id
        again = replace(wish, start=1)
        provider.reboot(HostRef(wish.claim), again)
        kill_all(host.instance_id)
        (place / "shepherd.json").unlink()
        assert provider.reboot(HostRef(wish.claim), again).is_alive
        assert provider.describe(HostRef(wish.claim)).address == host.address

    def test_what_is_on_a_volume_outlives_its_host(self, provider):
        one, two = spec(), spec()
        volume = Volume("vol-00000001", "/dev/xvdf")
        host = provider.launch(one)
        provider.attach_volume(HostRef(one.claim), volume)
        (provider.directory / host.instance_id / "attached" / volume.id / "model").write_text("weights")
        release_for_good(provider, HostRef(one.claim))
        host = provider.launch(two)
        provider.attach_volume(HostRef(two.claim), volume)
        assert (provider.directory / host.instance_id / "attached" / "xvdf" / "model").read_text() == "weights"

    def test_a_note_of_a_host_that_is_no_more_keeps_nobody_from_a_volume(self, provider):
        """As after a crash in the middle of a release."""
        wish = spec()
        provider.launch(wish)
        volumes = provider.directory.parent / "volumes"
        volumes.mkdir(exist_ok=True)
        (volumes / "vol-00000001.host").write_text("i-00000000000000000")
        provider.attach_volume(HostRef(wish.claim), Volume("vol-00000001", "/dev/xvdf"))
        assert provider.describe(HostRef(wish.claim)).volumes


def test_an_agent_that_dies_is_started_again(provider):
    host = provider.launch(spec())
    until(lambda: agents(host.instance_id), "an agent")
    (first,) = agents(host.instance_id)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: agents(host.instance_id) not in ([], [first]), "another agent")


def test_an_agent_is_not_hindered_by_what_its_shepherd_blocks(provider):
    host = provider.launch(spec())
    until(lambda: agents(host.instance_id), "an agent")
    (agent,) = agents(host.instance_id)
    status = Path(f"/proc/{agent.pid}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) == 0


def test_the_shepherd_is_small(provider):
    host = provider.launch(spec())
    shepherd = json.loads((provider.directory / host.instance_id / "shepherd.json").read_text())["pid"]
    status = Path(f"/proc/{shepherd}/status").read_text()
    kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert kib < 20_000
