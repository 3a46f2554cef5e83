"""A tmpfs of the tier's own, where the machine allows mounts; elsewhere the folder alone, and words on why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from agent.memory_tier import mounting
from agent.memory_tier.segments import HUGE_PAGE_BYTES, PAGE_BYTES
from tests.agent.memory_tier.hands import leased, save_step
from tests.checkpoint.tiers import ROOT, memory_tiers, until

MIB = 1 << 20


def may_mount(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=always", "x", str(folder)], capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", str(folder)], check=True)
    return True


@pytest.fixture
def mounts(tmp_path_factory):
    if not may_mount(tmp_path_factory):
        pytest.skip("this machine allows no mount of a tmpfs with huge pages")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "tier"
    yield place
    mounting.give_back(place)
    shutil.rmtree(place, ignore_errors=True)


def size_of(folder):
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


def test_without_a_wish_there_is_a_folder_and_no_mount(folder):
    ground = mounting.prepare(folder, nbytes=MIB, is_mounting=False)
    assert ground == mounting.Ground(PAGE_BYTES)
    assert folder.is_dir()
    assert not folder.is_mount()


def test_an_own_mount_has_huge_pages_and_its_size_follows_the_plan(folder, mounts):
    ground = mounting.prepare(folder, nbytes=100 * MIB, is_mounting=True)
    assert ground == mounting.Ground(HUGE_PAGE_BYTES)
    assert folder.is_mount()
    assert 100 * MIB < size_of(folder) < 200 * MIB
    assert mounting.resize(folder, nbytes=300 * MIB) is None
    assert 300 * MIB < size_of(folder) < 400 * MIB
    assert mounting.prepare(folder, nbytes=100 * MIB, is_mounting=True) == ground
    assert size_of(folder) < 200 * MIB
    mounting.give_back(folder)
    assert not folder.is_mount()


def test_a_mount_that_is_not_allowed_falls_back_with_words(tmp_path):
    without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    if subprocess.run([*without_rights, "true"], capture_output=True, check=False).returncode:
        pytest.skip("rights cannot be given up here")
    code = f"""
from pathlib import Path
from agent.memory_tier import mounting
ground = mounting.prepare(Path({str(tmp_path / "tier")!r}), nbytes=1 << 20, is_mounting=True)
print(ground.granule, ground.note)
"""
    said = subprocess.run(
        [*without_rights, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.startswith(f"{PAGE_BYTES} the memory tier has no mount"), said.stderr


def test_a_tier_on_its_own_mount_saves_survives_and_gives_it_back(tmp_path, mounts):
    with memory_tiers(tmp_path, environment={"EVERSTEP_MEMORY_TIER_MOUNT": "auto"}) as tiers:
        node = tiers[0]
        assert node.folder.is_mount()
        save_step(node, 10, content=b"x" * 3 * MIB)
        node.kill()
        node.start()
        with node.talk() as ask:
            assert leased(ask, 0, 10) == b"x" * 3 * MIB
            assert ask("status")["budget"]["used"] % HUGE_PAGE_BYTES == 0
        tiers.tell(allocation_percent=50)
        until(lambda: size_of(node.folder) > 512 * MIB, "the mount grows")
        tiers.tell(allocation_percent=None)
        until(lambda: not node.folder.exists(), "the mount is given back")


def test_a_full_mount_is_a_refusal_and_no_bus_error(tmp_path, mounts):
    """The budget is the first guard. Behind it stands the size of the mount, which others may have eaten into."""
    with memory_tiers(tmp_path, memory_mib=400, environment={"EVERSTEP_MEMORY_TIER_MOUNT": "auto"}) as (node,):
        (node.folder / "eaten").write_bytes(b"\1" * 150 * MIB)
        with node.talk() as ask:
            assert "No space left" in ask("open", index=0, step=1, nbytes=50 * MIB)["refused"]
            assert "segment" in ask("open", index=0, step=1, nbytes=2 * MIB)
        assert node.is_alive
