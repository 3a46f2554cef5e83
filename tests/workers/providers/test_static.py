"""Hosts of one's own. ``ssh`` is a stand-in that runs everything on this machine, each host in a folder of its own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE
from tests.workers.providers import fake_ssh
from tests.workers.providers.bundles import Door, bundle_door, small_bundle
from tests.workers.providers.contract import ProviderContract, release_for_good, spec, until
from workers.providers.base import HostNotFound, HostRef, Market, NoCapacity, ProviderError, Refused, Site, Volume
from workers.providers.static import StaticProvider
from workers.providers.static_inventory import StaticHost
from workers.providers.static_notes import Notes
from workers.providers.static_ssh import Line, Unreachable

TYPE = "ml.c5.large"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


@dataclass
class Lot:
    """A few hosts on this machine, and a control plane's provider for them. ``now`` is its clock, which stands as long as it is not None."""

    folder: Path
    door: Door
    hosts: list[StaticHost] = field(default_factory=list)
    offset_s: float = 0.0

    def host(self, name: str, **members: Any) -> StaticHost:
        place = self.folder / name
        place.mkdir()
        standard = {
            "address": f"10.0.0.{len(self.hosts) + 1}",
            "key": self.folder / "key",
            "instance_types": (TYPE,),
            "host_key": KEY,
            "directory": str(place / "everstep"),
            "memory_directory": str(place / "memory"),
            "volumes": str(self.folder / "shared"),
            "python": sys.executable,
            "service": "none",
            "min_free_mib": 1,
        }
        self.hosts.append(StaticHost(name=name, **{**standard, **members}))
        return self.hosts[-1]

    def change(self, name: str, **members: Any) -> None:
        self.hosts = [replace(host, **members) if host.name == name else host for host in self.hosts]

    def says(self, name: str, **said: Any) -> None:
        """What ``ssh`` makes of this host from now on; nothing: it works."""
        path = self.folder / "bin" / "fake.json"
        address = next(host.address for host in self.hosts if host.name == name)
        path.write_text(json.dumps({**json.loads(path.read_text()), address: said}))

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "bin" / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def provider(self, notes: str = "notes") -> StaticProvider:
        return StaticProvider(
            inventory=lambda: tuple(self.hosts),
            notes=Notes(self.folder / notes),
            line=Line(self.folder / "known", str(self.folder / "bin" / "ssh")),
            api_url=self.door.url,
            object_store_url=(self.folder / "store").as_uri(),
            clock=lambda: time.time() + self.offset_s,
        )

    def claimed_on(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name / "everstep" / "claim.json"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with bundle_door(small_bundle(tmp_path_factory.mktemp("bundle"))) as door:
        yield door


@pytest.fixture
def lot(tmp_path: Path, door: Door) -> Iterator[Lot]:
    (tmp_path / "bin").mkdir()
    client = tmp_path / "bin" / "ssh"
    client.write_text(f"#!{sys.executable} -IS\n{Path(fake_ssh.__file__).read_text()}")
    client.chmod(0o755)
    (tmp_path / "bin" / "fake.json").write_text("{}")
    (tmp_path / "key").touch(0o600)
    (tmp_path / "shared").mkdir()
    lot = Lot(tmp_path, door)
    yield lot
    for name in {path.name for path in tmp_path.glob("*/memory/i-*")} | {note["instance_id"] for note in notes_left(tmp_path)}:
        kill_all(name)


def notes_left(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (*folder.glob("*/everstep/claim.json"), *folder.glob("*/claims/*.json"))]


def processes(instance_id: str) -> set[procfs.ProcessKey]:
    return set(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == instance_id))


def kill_all(instance_id: str) -> None:
    while found := processes(instance_id):
        procfs.send(found, signal.SIGKILL)
        procfs.await_end(found, 5)


def environ(instance_id: str) -> dict[str, str]:
    (key, *_) = processes(instance_id)
    return procfs.environment(key.pid)


class TestStatic(ProviderContract):
    @pytest.fixture
    def provider(self, lot: Lot) -> StaticProvider:
        for name in ("one", "two"):
            lot.host(name)
        return lot.provider()


# ------------------------------------------------------------------ which host


def test_a_claim_whose_note_was_lost_is_found_on_its_host_again(lot: Lot):
    """As after a crash between the launch and its record, with the control plane's disk gone as well."""
    for name in ("one", "two", "three"):
        lot.host(name)
    wish, other = spec(), spec()
    lot.provider().launch(other)
    first = lot.provider().launch(wish)
    anew = lot.provider(notes="elsewhere")
    assert anew.launch(wish) == first
    assert {host.claim for host in lot.provider("again").hosts()} == {wish.claim, other.claim}
    assert lot.provider("once more").describe(HostRef(other.claim)).is_alive


def test_a_host_that_another_control_plane_has_taken_is_not_taken_again(lot: Lot):
    lot.host("one")
    first = lot.provider().launch(spec())
    other = lot.provider(notes="others")
    with pytest.raises(NoCapacity):
        other.launch(spec())
    assert lot.claimed_on("one")["claim"] == first.claim


def test_one_claim_launched_by_several_workers_at_once_is_one_host(lot: Lot):
    for name in ("one", "two"):
        lot.host(name)
    wish = spec()
    with ThreadPoolExecutor(3) as pool:
        hosts = list(pool.map(lot.provider().launch, [wish] * 3))
    assert len({(host.instance_id, host.address) for host in hosts}) == 1
    assert [lot.claimed_on(name) for name in ("one", "two")].count(None) == 1


def test_only_a_host_of_the_type_and_of_the_zone_is_taken_in_the_order_of_the_zones(lot: Lot):
    lot.host("other", instance_types=("ml.p5.48xlarge",))
    for name, zone in (("one", "a"), ("two", "b"), ("three", "c")):
        lot.host(name, zone=zone, labels={"rack": name})
    host = lot.provider().launch(replace(spec(), sites=(Site(zone="c"), Site(zone="b"))))
    assert (host.zone, host.tags["rack"], host.instance_type) == ("c", "three", TYPE)
    assert lot.provider().launch(replace(spec(), sites=(Site(zone="c"), Site(zone="b")))).zone == "b"
    with pytest.raises(NoCapacity, match="another site"):
        lot.provider().launch(replace(spec(), sites=(Site(zone="d"),)))


def test_a_type_that_no_host_stands_for_and_spot_capacity_are_refused_in_words(lot: Lot):
    lot.host("one")
    with pytest.raises(Refused, match=r"ml\.p5\.48xlarge.*instance_types"):
        lot.provider().launch(replace(spec(), instance_type="ml.p5.48xlarge"))
    with pytest.raises(Refused, match="spot"):
        lot.provider().launch(replace(spec(), market=Market.SPOT))
    assert not lot.calls()


# ------------------------------------------------------------------ the health gate


@pytest.mark.parametrize(
    "members, words",
    [
        ({"min_free_mib": 1 << 40}, "min_free_mib"),
        ({"python": "python-of-nobody"}, "python-of-nobody"),
        ({"directory": "/proc/everstep"}, "cannot be written"),
    ],
)
def test_a_host_that_lacks_what_a_node_needs_is_refused_and_nothing_is_left_on_it(lot: Lot, members: dict[str, Any], words: str):
    if "directory" in members and os.geteuid() == 0:
        members = {"directory": str(lot.folder / "file" / "everstep")}
        (lot.folder / "file").write_text("no folder")
        words = "file"
    lot.host("one", **members)
    with pytest.raises((Refused, NoCapacity), match=words):
        lot.provider().launch(spec())
    assert lot.claimed_on("one") is None


def test_a_host_whose_clock_is_off_is_refused_with_the_seconds(lot: Lot):
    lot.host("one")
    lot.offset_s = 3600.0
    with pytest.raises(Refused, match=r"clock is -3\d\d\d s off"):
        lot.provider().launch(spec())


def test_a_host_with_an_older_python_is_refused_in_words(lot: Lot):
    lot.host("one")
    lot.says("one", prints=json.dumps({"error": "its Python is 3.9.2; 3.11 or newer is needed", "kind": "refused"}))
    with pytest.raises(Refused, match=r"3\.9\.2"):
        lot.provider().launch(spec())


def test_a_host_that_does_not_answer_is_passed_over_and_left_alone_ever_longer(lot: Lot):
    lot.host("dead")
    lot.host("well")
    lot.says("dead", fails="ssh: connect to host 10.0.0.1 port 22: Connection timed out")
    provider = lot.provider()
    assert provider.launch(spec()).address == "10.0.0.2"

    def asked() -> int:
        return sum(call["address"] == "10.0.0.1" for call in lot.calls())

    for later_s, times in ((0.0, 1), (15.0, 1), (45.0, 2), (90.0, 2), (150.0, 3)):
        lot.offset_s = later_s
        with pytest.raises(NoCapacity, match="timed out"):
            provider.launch(spec())
        assert asked() == times, later_s
    lot.says("dead")
    lot.offset_s = 0.0
    with pytest.raises(NoCapacity, match="timed out"):
        provider.launch(spec())
    assert lot.provider(notes="of another control plane").launch(spec()).address == "10.0.0.1"


def test_a_host_that_says_what_nobody_understands_is_passed_over(lot: Lot):
    lot.host("broken")
    lot.host("well")
    lot.says("broken", prints="not JSON")
    assert lot.provider().launch(spec()).address == "10.0.0.2"
    assert lot.claimed_on("broken") is None


def test_a_bundle_that_cannot_be_fetched_leaves_the_host_clean_and_says_why(lot: Lot):
    lot.host("one")
    provider = replace(lot.provider(), api_url=lot.door.url)
    lot.door.refusals = [401]  # of the set-up's own call: the checksum has been told before
    lot.door.heads_are_well = True
    try:
        with pytest.raises(NoCapacity, match="401"):
            provider.launch(spec())
    finally:
        lot.door.heads_are_well = False
        lot.door.refusals = []
    assert not (lot.folder / "one" / "everstep").exists()
    assert not provider.hosts()


def test_a_control_plane_that_does_not_answer_keeps_hosts_untouched(lot: Lot):
    lot.host("one")
    provider = replace(lot.provider(), api_url="http://127.0.0.1:9")
    with pytest.raises(ProviderError, match="checksum"):
        provider.launch(spec())
    assert lot.claimed_on("one") is None


def test_a_folder_that_holds_somebody_elses_files_is_never_taken_nor_emptied(lot: Lot):
    lot.host("one")
    precious = lot.folder / "one" / "everstep" / "precious"
    precious.parent.mkdir()
    precious.write_text("data")
    with pytest.raises((Refused, NoCapacity), match="not ours"):
        lot.provider().launch(spec())
    assert precious.read_text() == "data"


# ------------------------------------------------------------------ alive, dead, unreachable


def test_a_host_of_which_nothing_is_alive_is_dead_and_one_that_does_not_answer_is_not(lot: Lot):
    lot.host("one")
    wish = spec()
    provider = lot.provider()
    host = provider.launch(wish)
    lot.says("one", fails="ssh: connect to host 10.0.0.1 port 22: No route to host")
    assert provider.describe(HostRef(wish.claim)).is_alive
    assert [seen.claim for seen in provider.hosts()] == [wish.claim]
    lot.says("one")
    kill_all(host.instance_id)
    is_long_up = float(Path("/proc/uptime").read_text().split()[0]) > 180
    assert provider.describe(HostRef(wish.claim)).is_alive is not is_long_up


def test_a_release_of_a_host_that_does_not_answer_is_never_forgotten(lot: Lot):
    lot.host("one")
    wish = spec()
    provider = lot.provider()
    host = provider.launch(wish)
    lot.says("one", fails="ssh: connect to host 10.0.0.1 port 22: Connection refused")
    for _ in range(3):
        with pytest.raises(Unreachable):
            lot.provider().release(HostRef(wish.claim))
    assert [seen.claim for seen in lot.provider().hosts()] == [wish.claim]
    with pytest.raises(NoCapacity):
        provider.launch(spec())
    lot.says("one")
    release_for_good(lot.provider(), HostRef(wish.claim))
    assert not processes(host.instance_id)


@pytest.mark.slow
def test_a_host_that_was_struck_from_the_inventory_is_not_forgotten_before_its_release(lot: Lot):
    lot.host("one")
    wish = spec()
    provider = lot.provider()
    provider.launch(wish)
    (struck,), lot.hosts = lot.hosts, []
    with pytest.raises(ProviderError, match="put it back"):
        provider.release(HostRef(wish.claim))
    assert [seen.claim for seen in provider.hosts()] == [wish.claim]
    lot.hosts = [struck]
    release_for_good(provider, HostRef(wish.claim))


# ------------------------------------------------------------------ given back


def test_a_released_host_is_clean_and_serves_the_next_claim(lot: Lot):
    host = lot.host("one", clean_command=f"touch {lot.folder}/cleaned")
    wish = spec()
    provider = lot.provider()
    seen = provider.launch(wish)
    until(lambda: len(processes(seen.instance_id)) >= 2, "an agent")
    memory = Path(host.memory_directory) / seen.instance_id
    (memory / "ns").mkdir(parents=True, exist_ok=True)
    (Path(host.directory) / "node" / "state" / "secret").write_text("of the tenant")
    release_for_good(provider, HostRef(wish.claim))
    assert not processes(seen.instance_id)
    assert not memory.exists()
    assert not Path(host.directory).exists()
    assert (lot.folder / "cleaned").exists()
    again = provider.launch(spec())
    assert (again.address, again.instance_id == seen.instance_id) == (seen.address, False)


def test_a_host_that_cannot_be_cleaned_keeps_its_claim(lot: Lot):
    lot.host("one", clean_command="echo the scratch disk is busy >&2; exit 3")
    wish = spec()
    provider = lot.provider()
    provider.launch(wish)
    with pytest.raises(ProviderError, match="scratch disk is busy"):
        provider.release(HostRef(wish.claim))
    assert lot.claimed_on("one")["claim"] == wish.claim
    with pytest.raises(NoCapacity):
        provider.launch(spec())
    lot.change("one", clean_command="true")
    release_for_good(provider, HostRef(wish.claim))


@pytest.mark.slow
def test_a_stubborn_process_of_a_node_does_not_outlive_its_release(lot: Lot):
    lot.host("one")
    wish = spec()
    provider = lot.provider()
    seen = provider.launch(wish)
    until(lambda: len(processes(seen.instance_id)) >= 2, "an agent")
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-c", deaf], env={NODE_ID_VARIABLE: seen.instance_id}, start_new_session=True, stdout=-1
    )
    child.stdout.readline()
    provider.release(HostRef(wish.claim))
    assert child.wait(5) == -signal.SIGKILL
    child.stdout.close()


def test_a_release_that_its_caller_gave_up_never_touches_the_next_claim_of_the_host(lot: Lot):
    """It goes on there. Another worker, which knows nothing of it, is told so instead of doing the same at the same time."""
    os.mkfifo(lot.folder / "go")
    first_alone = f"mkdir {lot.folder}/cleaning 2>/dev/null && cat {lot.folder}/go; true"
    lot.host("one", clean_command=first_alone)
    wish, next_wish = spec(), spec()
    lot.provider().launch(wish)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lot.provider().release, HostRef(wish.claim))
        until(lambda: (lot.folder / "cleaning").exists(), "a release that is at work")
        other = lot.provider("other")
        with pytest.raises(ProviderError, match="something else is being done to this host"):
            other.release(HostRef(wish.claim))
        with pytest.raises(ProviderError, match=r"in use|claimed for somebody else"):
            other.launch(next_wish)
        (lot.folder / "go").write_text("on")
        slow.result()
    seen = lot.provider().launch(next_wish)
    assert lot.claimed_on("one")["claim"] == next_wish.claim
    assert processes(seen.instance_id)


def test_a_host_to_which_something_is_being_done_refuses_other_changes_and_keeps_its_claim(lot: Lot):
    host = lot.host("one")
    wish = spec()
    provider = lot.provider()
    provider.launch(wish)
    ref = HostRef(wish.claim)
    changes: list[Callable[[], object]] = [
        lambda: provider.launch(wish),
        lambda: provider.release(ref),
        lambda: provider.reboot(ref, replace(wish, start=1)),
    ]
    descriptor = os.open(host.directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for change in changes:
            with pytest.raises(ProviderError, match="something else is being done to this host") as refused:
                change()
            assert not isinstance(refused.value, HostNotFound | Refused | NoCapacity)
        assert provider.describe(ref).is_alive, "looking needs no lock"
    finally:
        os.close(descriptor)
    assert lot.claimed_on("one")["start"] == 0
    provider.release(ref)
    assert not Path(host.directory).exists()


# ------------------------------------------------------------------ restarts


def test_a_launch_that_was_cut_short_is_taken_up_again_on_the_same_host(lot: Lot):
    for name in ("one", "two"):
        lot.host(name)
    wish = spec()
    provider = lot.provider()
    host = provider.launch(wish)
    kill_all(host.instance_id)
    taken = next(name for name in ("one", "two") if lot.claimed_on(name))
    (lot.folder / taken / "everstep" / "setup.state").write_text("running\n")
    assert provider.launch(wish) == host
    assert processes(host.instance_id)


def test_a_reboot_ends_every_process_and_keeps_the_disk_and_a_reimage_keeps_nothing(lot: Lot):
    host = lot.host("one", reimage_command=f"touch {lot.folder}/reimaged")
    wish = spec()
    provider = lot.provider()
    seen = provider.launch(wish)
    before = processes(seen.instance_id)
    kept = Path(host.directory) / "node" / "state" / "kept"
    kept.write_text("data")
    provider.reboot(HostRef(wish.claim), replace(wish, start=1))
    assert kept.read_text() == "data"
    assert not before & processes(seen.instance_id)
    assert environ(seen.instance_id)["EVERSTEP_HOST_START"] == "1"
    assert not (lot.folder / "reimaged").exists()
    provider.reimage(HostRef(wish.claim), replace(wish, start=2, image="2.0.0"))
    assert not kept.exists()
    assert environ(seen.instance_id)["EVERSTEP_IMAGE"] == "2.0.0"
    assert (lot.folder / "reimaged").exists()


@pytest.mark.slow
def test_a_host_that_is_to_go_down_is_told_so_after_its_node_is_ready_for_the_next_boot(lot: Lot):
    host = lot.host("one", reboot_command=f"date +%s%N >>{lot.folder}/down")
    wish = spec()
    provider = lot.provider()
    seen = provider.launch(wish)
    again = replace(wish, start=1)
    assert provider.reboot(HostRef(wish.claim), again).is_alive
    until(lambda: (lot.folder / "down").exists(), "the command")
    assert not processes(seen.instance_id), "the node is started by the next boot"
    assert "EVERSTEP_HOST_START=1" in (Path(host.directory) / "node.env").read_text()
    noted = lot.folder / "one" / "everstep" / "claim.json"
    noted.write_text(json.dumps({**json.loads(noted.read_text()), "boot": "the boot before"}))
    provider.reboot(HostRef(wish.claim), again)
    time.sleep(1.2)
    assert len((lot.folder / "down").read_text().splitlines()) == 1, "a host that has gone down is not sent down again"


def test_a_reboot_that_nothing_would_follow_is_refused(lot: Lot):
    if Path("/run/systemd/system").is_dir():
        pytest.skip("this machine has systemd")
    lot.host("one", reboot_command="true", service="auto")
    wish = spec()
    provider = lot.provider()
    provider.launch(wish)
    with pytest.raises(Refused, match="systemd"):
        provider.reboot(HostRef(wish.claim), replace(wish, start=1))


# ------------------------------------------------------------------ what agents and command lines hold


@pytest.mark.slow
def test_an_agent_is_told_all_that_it_needs_and_nothing_of_the_control_planes_machine(lot: Lot):
    host = lot.host("one", vcpus=96, environ={"AWS_ENDPOINT_URL_S3": "http://store:9000"}, node_address="127.9.9.9")
    seen = lot.provider().launch(spec())
    told = environ(seen.instance_id)
    assert told["EVERSTEP_NODE_VCPUS"] == "96"
    assert told["EVERSTEP_NODE_MEMORY_MIB"] == "4096"
    assert told["EVERSTEP_NODE_ADDRESS"] == seen.address == "127.9.9.9"
    assert told["AWS_ENDPOINT_URL_S3"] == "http://store:9000"
    assert told["EVERSTEP_MEMORY_TIER_DIR"] == f"{host.memory_directory}/{seen.instance_id}"
    assert told["EVERSTEP_BOOT_TOKEN"] == "boot-token-of-the-tests"
    assert "EVERSTEP_MASTER_KEY" not in told


def test_no_token_is_ever_on_a_command_line(lot: Lot):
    lot.host("one")
    wish = spec()
    provider = lot.provider()
    seen = provider.launch(wish)
    provider.reboot(HostRef(wish.claim), replace(wish, start=1))
    assert len(lot.calls()) >= 3
    assert wish.boot_token not in json.dumps(lot.calls())
    for key in processes(seen.instance_id):
        assert wish.boot_token not in Path(f"/proc/{key.pid}/cmdline").read_text()
    for path in (lot.folder / "notes").rglob("*"):
        assert path.is_dir() or wish.boot_token not in path.read_text()


def test_a_volume_without_a_shared_folder_and_a_name_that_is_none_are_refused(lot: Lot):
    lot.host("one", volumes=None)
    wish = spec()
    provider = lot.provider()
    provider.launch(wish)
    with pytest.raises(Refused, match="volumes"):
        provider.attach_volume(HostRef(wish.claim), Volume("vol-00000001", "/dev/xvdf"))
    for name in ("nonsense", "vol-../../etc"):
        with pytest.raises(Refused, match="no volume id"):
            provider.attach_volume(HostRef(wish.claim), Volume(name, "/dev/xvdf"))


@pytest.mark.slow
def test_what_is_on_a_volume_outlives_its_host_and_is_found_by_its_agent(lot: Lot):
    for name in ("one", "two"):
        lot.host(name)
    volume = Volume("vol-00000001", "/dev/xvdf")
    provider = lot.provider()
    for text, wish in (("", spec()), ("weights", spec())):
        seen = provider.launch(wish)
        provider.attach_volume(HostRef(wish.claim), volume)
        model = Path(environ(seen.instance_id)["EVERSTEP_VOLUMES"]) / "xvdf" / "model"
        assert (model.read_text() if model.exists() else "") == text
        model.write_text("weights")
        release_for_good(provider, HostRef(wish.claim))
    assert (lot.folder / "shared" / volume.id / "model").read_text() == "weights"


def test_what_was_never_noted_and_cannot_be_asked_for_is_not_found(lot: Lot):
    lot.host("one")
    lot.says("one", fails="ssh: connect: Connection timed out")
    with pytest.raises(HostNotFound):
        lot.provider().describe(HostRef("never"))
