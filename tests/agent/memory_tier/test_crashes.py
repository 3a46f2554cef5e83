"""Report R-17 and criterion TC-6: whoever is killed at whatever moment of a save, with one step kept, the newest complete step is found again.

Real processes: a tier, and a writer that saves step after step. After each SIGKILL everything is started again, and

- the newest step that can be found is not older than the last one whose save was acknowledged,
- every shard of every step that is told can be had, and has the bytes that were written for it,
- the next saves work.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.agent.memory_tier.hands import KIB, leased
from tests.agent.memory_tier.writer import WORLD, content
from tests.checkpoint.tiers import ROOT, TOKEN, memory_tiers, planned, until

NBYTES = 200 * KIB


class Writer:
    def __init__(self, node, first):
        self.acknowledged = first - 1
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/agent/memory_tier/writer.py"),
                str(node.socket),
                "ns",
                TOKEN,
                str(first),
                str(NBYTES),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self):
        for line in self._process.stdout:
            self.acknowledged = int(line)

    def wait_for(self, step):
        until(lambda: self.acknowledged >= step, f"step {step} is saved")

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._reading.join()
        self._process.stdout.close()


@contextlib.contextmanager
def writing(node, first):
    writer = Writer(node, first)
    try:
        yield writer
    finally:
        writer.kill()


def check(node, acknowledged):
    """Returns the newest step, which is whole. Older ones may go while they are looked at: only one is kept."""
    with node.talk() as ask:
        steps = ask("find", step=None, limit=100)["steps"]
        assert steps, f"nothing is left; step {acknowledged} was acknowledged"
        newest = steps[0]["step"]
        assert newest >= acknowledged
        for found in steps:
            assert found["is_in_memory"]
            for index in range(WORLD + 1):
                got = leased(ask, index, found["step"], is_missing_ok=found["step"] != newest)
                assert got in {content(found["step"], index, NBYTES), None}
        left = ask("find", step=None, limit=100)["steps"]
        assert left[0]["step"] == newest
        return newest


def sweep(tmp_path, *, seed, points, kill):
    """``kill`` strikes one of the two at a random moment of a save, and starts again what it has killed but for the writer."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    with memory_tiers(tmp_path, memory_mib=64, namespaces=[planned(keep_in_memory=1, replicas=1)]) as (node,):
        newest = 0
        for _ in range(points):
            with writing(node, newest + 1) as writer:
                writer.wait_for(newest + chance.randint(1, 4))
                time.sleep(chance.random() * 0.03)  # the random moment
                kill(node, writer)
            newest = check(node, writer.acknowledged)
        with node.talk() as ask:
            until(lambda: len(ask("find", step=None, limit=100)["steps"]) == 1, "one step is kept")


def kill_tier(node, writer):
    node.kill()
    writer.kill()
    node.start()


def kill_writer(_node, writer):
    writer.kill()


def kill_tier_under_a_writer(node, writer):
    """The writer goes on when the tier is back: segments that it has mapped, and locks that it holds, survive the tier."""
    node.kill()
    node.start()
    writer.wait_for(writer.acknowledged + 2)
    writer.kill()


KILLS = {"tier": kill_tier, "writer": kill_writer, "tier under a writer": kill_tier_under_a_writer}


@pytest.mark.parametrize("who", KILLS)
def test_the_newest_complete_step_survives_a_kill_at_some_moments_of_a_save(tmp_path, who):
    sweep(tmp_path, seed=random.randrange(1 << 32), points=6, kill=KILLS[who])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("who", KILLS)
def test_the_newest_complete_step_survives_a_kill_at_many_moments_of_a_save(tmp_path, who):
    sweep(tmp_path, seed=random.randrange(1 << 32), points=50, kill=KILLS[who])


def test_a_writer_that_is_killed_while_it_writes_gives_its_segment_back(tmp_path):
    with memory_tiers(tmp_path) as (node,):
        with node.talk() as ask:
            first = ask("open", index=0, step=10, nbytes=100)
        with node.talk() as ask:
            again = until(
                lambda: next(
                    (one for one in [ask("open", index=0, step=10, nbytes=100)] if one["segment"] == first["segment"]), None
                ),
                "the segment is used again",
            )
            assert again["segment"] == first["segment"]
            assert ask("find", step=None, limit=9)["steps"] == []


def test_a_tier_that_is_killed_while_it_adopts_loses_nothing(tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with memory_tiers(tmp_path, memory_mib=256, namespaces=[planned(keep_in_memory=3, replicas=1)]) as (node,):
        with writing(node, 1) as writer:
            writer.wait_for(5)
        for _ in range(4):
            node.kill()
            node.start(waits=False)
            time.sleep(chance.random() * 0.2)  # the random moment
        node.signal(signal.SIGKILL)
        node.start()
        check(node, writer.acknowledged)
