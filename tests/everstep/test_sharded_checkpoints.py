"""A sharded run whose every process is killed goes on from its newest checkpoint, in as many shards as before or in others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from everstep.protocol import Source
from tests.checkpoint.tiers import memory_tiers, planned
from tests.everstep.checkpoint.test_resume import (
    KILLED_AT,
    STEPS,
    assert_as_unbroken,
    dead,
    job_of,
    killed_whole,
    losses_of,
    trained,
)
from tests.everstep.plane import JobFailed

EVERY = 5
NEVER = 1000


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("mode", "ranks"), [("fsdp", 2), pytest.param("hsdp", 4, marks=pytest.mark.slow)])
def test_a_sharded_run_killed_whole_goes_on_from_memory_as_if_unbroken(mode: str, ranks: int, tmp_path: Path) -> None:
    reference = job_of(tmp_path, "reference", EVERY, NEVER, ranks=ranks, mode=mode)
    broken = job_of(tmp_path, "broken", EVERY, NEVER, killed_whole(ranks), ranks=ranks, mode=mode)
    with memory_tiers(tmp_path, 2, namespaces=[planned("ns", replicas=2)]) as tiers:
        asyncio.run(trained(tmp_path, [reference], dict(os.environ)))
        asyncio.run(trained(tmp_path / "with", [broken], dict(os.environ), list(tiers)))
    assert_as_unbroken(tmp_path, broken, reference)
    restored = [report for report in broken.reformed if report.generation == 2]
    assert [report.source for report in restored] == [Source.MEMORY] * ranks
    (step,) = {report.step for report in restored}
    assert step in {5, 10, 15}
    assert all(report.bytes_moved > 5_000 for report in restored)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("mode", "ranks"), [pytest.param("fsdp", 3, marks=pytest.mark.slow), pytest.param("ddp", 1, marks=pytest.mark.slow)]
)
def test_a_run_in_other_shards_or_in_none_goes_on_from_memory(mode: str, ranks: int, tmp_path: Path) -> None:
    first = job_of(tmp_path, "first", EVERY, NEVER, killed_whole(), mode="fsdp")
    second = job_of(tmp_path, "second", EVERY, NEVER, ranks=ranks, mode=mode)
    with memory_tiers(tmp_path, 2, namespaces=[planned("ns", replicas=2)]) as tiers:
        with pytest.raises(JobFailed):
            asyncio.run(trained(tmp_path / "first-plane", [dead(first)], dict(os.environ), list(tiers)))
        asyncio.run(trained(tmp_path / "second-plane", [second], dict(os.environ), list(tiers)))
    restored = [report for report in second.reformed if report.generation == 1]
    assert [report.source for report in restored] == [Source.MEMORY] * ranks
    (step,) = {report.step for report in restored}
    assert step in {5, 10, 15}
    before, after = losses_of(tmp_path, "first"), losses_of(tmp_path, "second")
    assert sorted(before) == list(range(KILLED_AT))
    assert sorted(after) == list(range(step, STEPS))
