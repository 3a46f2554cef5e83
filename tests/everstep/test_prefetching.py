"""A rank dies, and its successor's first batch is there already: prepared by the dead one, in the memory of their node."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from everstep.data import DataOrder
from everstep.data.supply import Origin
from everstep.elastic import share_of
from tests.everstep.plane import Job, Plane, script_launch
from tests.everstep.scripts import tokens
from tests.everstep.test_resizing import LIMIT_S, SCRIPT, notes_of

STEPS = 80
"""Some seconds: the spare is to be ready while they are trained."""


async def killed_once(folder: Path) -> tuple[Job, int]:
    """The job, and the pid of the dead rank."""
    plane = Plane(folder, 1, dict(os.environ))
    job = Job("killed", script_launch(SCRIPT, "manual", str(folder), str(STEPS), "2", seed=tokens.SEED), replicas=2, spares=1)
    await plane.start()
    try:
        await plane.submit(job)
        await plane.until(lambda: len(job.ready) == 1 and len(job.losses) > 5, LIMIT_S)
        dead = job.pids[job.members[1]]
        os.kill(dead, signal.SIGKILL)
        await plane.finish(job, LIMIT_S)
    finally:
        await plane.stop()
    return job, dead


@pytest.mark.timeout(300)
def test_after_a_kill_the_first_batch_comes_from_shared_memory_and_each_sample_once(tmp_path: Path) -> None:
    job, dead = asyncio.run(killed_once(tmp_path))
    noted = notes_of(tmp_path)
    (successor,) = [lines for pid, lines in noted.items() if pid != dead and lines[0]["step"] > 0]
    assert successor[0]["rank"] == 1
    assert successor[0]["origin"] == Origin.SHARED_MEMORY
    assert all(lines[0]["origin"] == Origin.READ for lines in noted.values() if lines[0]["step"] == 0)

    counts = Counter(line["origin"] for lines in noted.values() for line in lines)
    print("batches by origin:", dict(counts))
    assert counts[Origin.READ] <= 2 + 1, "the first of each first rank, and what a kill while it was being read has cost"
    hashes = {}
    unnoted = set()
    for step in range(STEPS):
        lines = [line for own in noted.values() for line in own if line["step"] == step]
        by_rank = {line["rank"]: line["samples"] for line in lines}
        assert all(line["samples"] == by_rank[line["rank"]] for line in lines)
        for rank in range(2):
            share = share_of(tokens.GLOBAL_BATCH, rank, 2)
            expected = DataOrder(tokens.SIZE, tokens.SEED).indices(step * tokens.GLOBAL_BATCH + share.start, share.size)
            if rank in by_rank:
                assert [index for index, _ in by_rank[rank]] == expected
            else:
                unnoted.add((rank, step))
        for index, hashed in (item for own in by_rank.values() for item in own):
            assert hashes.setdefault(index, hashed) == hashed, "a sample is the same, wherever it came from"
    assert unnoted <= {(1, noted[dead][-1]["step"] + 1)}, "one step may be its own that it voted for and did not live to note"
    assert sorted(job.losses) == list(range(STEPS))
    assert list(tmp_path.glob("*/batches")) == [], "the agent has taken it away with the job"
