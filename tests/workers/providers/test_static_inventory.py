from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.workers.providers.test_static import KEY
from workers.providers import registry
from workers.providers.static import StaticProvider
from workers.providers.static_inventory import BadInventory, Inventory, read
from workers.settings import Settings, SettingsError

GOOD = f"""
defaults:
  user: everstep
  sudo: true
  key: key
  instance_types: ml.p5.48xlarge
hosts:
  - name: gpu-01
    address: 10.0.0.1
    host_key: {KEY}
    zone: rack-a
    labels: {{rack: "12"}}
    vcpus: 192
    memory_mib: 2097152
  - name: gpu-02
    address: gpu-02.example.org
    port: 2222
    user: root
    sudo: false
    known_hosts: known
    instance_types: [ml.p5.48xlarge, ml.p4d.24xlarge]
"""


def written(folder: Path, text: str) -> Path:
    (folder / "key").touch(0o600)
    (folder / "known").touch()
    path = folder / "inventory.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def test_hosts_are_read_with_what_they_have_in_common(tmp_path: Path):
    one, two = read(written(tmp_path, GOOD))
    assert (one.name, one.user, one.sudo, one.port, one.instance_types) == ("gpu-01", "everstep", True, 22, ("ml.p5.48xlarge",))
    assert (one.key, one.zone, one.labels, one.vcpus) == (tmp_path / "key", "rack-a", {"rack": "12"}, 192)
    assert (two.user, two.sudo, two.port, two.known_hosts) == ("root", False, 2222, tmp_path / "known")


@pytest.mark.parametrize(
    "member, words",
    [
        ("adress: 10.0.0.2", "`adress`.*did you mean `address`"),
        ("address: -oProxyCommand=evil", "`address`.*host name or an IP address"),
        ("name: ../../etc", "`name`.*lower-case"),
        ("user: 'root -o x'", "`user`.*name of a user"),
        ("port: 70000", "`port`.*65535"),
        ("port: '22'", "`port`.*whole number"),
        ("vcpus: 0", "`vcpus`.*whole number from 1"),
        ("sudo: maybe", "`sudo`.*true or false"),
        ("directory: relative/path", "`directory`.*absolute path"),
        ("directory: /var/lib/../../etc", "`directory`.*absolute path"),
        ("directory: /var/lib/ever step", "`directory`.*absolute path"),
        ("key: nowhere", "`key`.*no file"),
        ("instance_types: []", "`instance_types`.*ml.p5.48xlarge"),
        ("instance_types: p5", "`instance_types`.*ml.p5.48xlarge"),
        ("labels: {rack: 12}", "`labels`.*quotes"),
        ("environ: {PATH: /bin}", "`environ`.*PATH"),
        ("environ: {'A B': x}", "`environ`.*A B"),
        ("service: upstart", "`service`.*systemd"),
        ("host_key: gpu-01 ssh-ed25519 AAAA", "`host_key`.*without a host name"),
        ("known_hosts: known", "host_key.*known_hosts"),
        ('clean_command: "one\\ntwo"', "`clean_command`.*one line"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_host_and_the_member(tmp_path: Path, member: str, words: str):
    name = member.partition(":")[0]
    members = {"name": "gpu-01", "address": "10.0.0.1", "key": "key", "instance_types": "ml.c5.large", "host_key": KEY}
    lines = [f"{other}: {value}" for other, value in members.items() if other != name] + [member]
    path = written(tmp_path, "hosts:\n  - " + "\n    ".join(lines) + "\n")
    with pytest.raises(BadInventory, match=words) as caught:
        read(path)
    assert "gpu-01" in str(caught.value) or name == "name"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["name", "address", "key", "instance_types", "host_key"])
def test_a_member_that_is_missing_is_named(tmp_path: Path, missing: str):
    members = {"name": "gpu-01", "address": "10.0.0.1", "key": "key", "instance_types": "ml.c5.large", "host_key": KEY}
    lines = [f"{name}: {value}" for name, value in members.items() if name != missing]
    with pytest.raises(BadInventory, match=rf"`{missing}`"):
        read(written(tmp_path, "hosts:\n  - " + "\n    ".join(lines) + "\n"))


@pytest.mark.parametrize("text", ["", "[]", "hosts: 3", "hosts: [", "hosts: [3]", "host: []\nhosts: []"])
def test_what_is_no_inventory_is_refused_in_words(tmp_path: Path, text: str):
    with pytest.raises(BadInventory):
        read(written(tmp_path, text))


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path):
    path = written(tmp_path, GOOD)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(BadInventory, match="chmod 600"):
        read(path)


@pytest.mark.parametrize(
    "change, words", [(("gpu-02", "gpu-01"), "another host's"), (("gpu-02.example.org\n    port: 2222", "10.0.0.1"), "gpu-01")]
)
def test_one_machine_is_not_listed_as_two_hosts(tmp_path: Path, change: tuple[str, str], words: str):
    with pytest.raises(BadInventory, match=words):
        read(written(tmp_path, GOOD.replace(*change)))


def test_a_change_of_the_file_is_seen_and_a_mistake_in_it_leaves_the_hosts_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = written(tmp_path, GOOD)
    inventory = Inventory(path)
    assert len(inventory()) == 2
    path.write_text(GOOD.replace("gpu-01", "gpu-11"))
    os.utime(path, (1, 1))
    assert inventory()[0].name == "gpu-11"
    path.write_text("hosts: oops")
    assert len(inventory()) == 2
    assert "taken as it was" in caplog.text
    path.unlink()
    assert len(inventory()) == 2


def settings(tmp_path: Path, inventory: Path | None) -> Settings:
    told = {"EVERSTEP_HEALTH_X": "1", "EVERSTEP_MEMORY_TIER_Y": "2", "HOME": "/root", "AWS_SECRET_ACCESS_KEY": "ours"}
    return Settings(
        database_url="postgresql://x",
        broker_url="redis://x",
        master_key=bytes(32),
        object_store_url="s3://bucket",
        home=tmp_path,
        api_url="http://plane:8600",
        provider="static",
        static_inventory=inventory,
        environ=told,
    )


def test_the_settings_make_a_provider_whose_nodes_are_told_nothing_of_this_machine(tmp_path: Path):
    made = registry.provider(settings(tmp_path, written(tmp_path, GOOD)))
    assert isinstance(made, StaticProvider)
    assert dict(made.environ) == {"EVERSTEP_HEALTH_X": "1", "EVERSTEP_MEMORY_TIER_Y": "2"}
    assert [host.name for host in made.inventory()] == ["gpu-01", "gpu-02"]


@pytest.mark.parametrize("text", [None, "hosts: oops"])
def test_without_a_good_inventory_the_settings_are_refused_by_their_name(tmp_path: Path, text: str | None):
    with pytest.raises(SettingsError, match="EVERSTEP_STATIC_INVENTORY"):
        registry.provider(settings(tmp_path, None if text is None else written(tmp_path, text)))
