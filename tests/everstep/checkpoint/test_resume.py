"""A run whose every process is killed goes on from its newest checkpoint, and ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from everstep.protocol import Source
from everstep.testing import Fault, arm
from tests.checkpoint.tiers import Node, memory_tiers, planned, until
from tests.everstep.plane import Job, JobFailed, Plane, script_launch

SCRIPT = Path(__file__).parents[1] / "scripts" / "train.py"
STEPS = 24
KILLED_AT = 17
LIMIT_S = 90.0


def job_of(
    folder: Path,
    name: str,
    every: int,
    durable_every: int,
    faults: Sequence[Fault] = (),
    *,
    ranks: int = 2,
    spares: int = 0,
    mode: str = "ddp",
) -> Job:
    notes = folder / name
    notes.mkdir(parents=True)
    arm(notes / "faults", faults)
    arguments = (mode, str(notes), str(STEPS), str(notes / "faults"), str(every), str(durable_every))
    return Job(name, script_launch(SCRIPT, *arguments), ranks, spares)


def killed_whole(ranks: int = 2, step: int = KILLED_AT, phase: str = "forward") -> list[Fault]:
    return [Fault(rank, phase, step=step) for rank in range(ranks)]


def losses_of(folder: Path, name: str) -> dict[int, set[float]]:
    found: defaultdict[int, set[float]] = defaultdict(set)
    for path in (folder / name).glob("losses-*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            found[line["step"]].add(line["loss"])
    return found


async def trained(folder: Path, jobs: Sequence[Job], environment: dict[str, str], tiers: Sequence[Node] = ()) -> None:
    """All of the jobs, one after the other, to their ends."""
    plane = Plane(folder, max(1, len(tiers)), environment, tiers)
    await plane.start()
    try:
        for job in jobs:
            await plane.submit(job)
            await plane.finish(job, LIMIT_S)
    finally:
        await plane.stop()


def with_store(folder: Path) -> dict[str, str]:
    (folder / "objects").mkdir()
    return {**os.environ, "EVERSTEP_OBJECT_STORE_URL": (folder / "objects").as_uri()}


def assert_as_unbroken(folder: Path, broken: Job, reference: Job) -> None:
    expected, seen = losses_of(folder, reference.name), losses_of(folder, broken.name)
    assert seen == expected
    assert sorted(seen) == list(range(STEPS))
    assert broken.losses == reference.losses
    assert {report.digest for report in broken.finished.values()} == {report.digest for report in reference.finished.values()}


def test_a_run_killed_whole_goes_on_from_the_object_store_as_if_unbroken(tmp_path: Path) -> None:
    reference = job_of(tmp_path, "reference", 5, 5)
    broken = job_of(tmp_path, "broken", 5, 5, killed_whole())
    asyncio.run(trained(tmp_path, [reference, broken], with_store(tmp_path)))
    assert_as_unbroken(tmp_path, broken, reference)
    restored = [report for report in broken.reformed if report.generation == 2]
    assert [report.source for report in restored] == [Source.STORE] * 2
    assert {report.step for report in restored} <= {5, 10, 15}
    assert all(report.bytes_moved > 10_000 for report in restored)
    assert len(broken.pids) == 4


def test_a_run_killed_whole_goes_on_from_memory_without_reading_the_store(tmp_path: Path) -> None:
    reference = job_of(tmp_path, "reference", 5, 1000)
    broken = job_of(tmp_path, "broken", 5, 1000, killed_whole())
    namespaces = [planned("ns", replicas=2)]
    with memory_tiers(tmp_path, 2, namespaces=namespaces) as tiers:
        asyncio.run(trained(tmp_path, [reference], dict(os.environ)))
        asyncio.run(trained(tmp_path / "with", [broken], dict(os.environ), list(tiers)))
    assert_as_unbroken(tmp_path, broken, reference)
    restored = [report for report in broken.reformed if report.generation == 2]
    assert [report.source for report in restored] == [Source.MEMORY] * 2
    (step,) = {report.step for report in restored}
    assert step in {5, 10, 15}, "a save is left out while the one before has not ended, and the last may have been cut off"
    assert {report.step for report in broken.saved} >= {5, 20}
    assert all(report.nbytes > 10_000 for report in broken.saved)


def test_a_node_that_is_lost_after_a_save_is_made_up_for_by_its_peers_memory(tmp_path: Path) -> None:
    """The first job is killed for good; the second goes on from what the other node holds, with half of the ranks."""
    first = job_of(tmp_path, "first", 5, 1000, killed_whole())
    second = job_of(tmp_path, "second", 5, 1000, ranks=1)
    with memory_tiers(tmp_path, 2, namespaces=[planned("ns", replicas=2)]) as tiers:
        with pytest.raises(JobFailed):
            asyncio.run(trained(tmp_path / "first-plane", [dead(first)], dict(os.environ), list(tiers)))
        with tiers[1].talk() as ask:
            until(lambda: copies_of(ask, 15) >= 2, "two copies of every shard of step 15")
        tiers[0].lose()
        tiers.tell(present=[tiers[1]])
        asyncio.run(trained(tmp_path / "second-plane", [second], dict(os.environ), [tiers[1]]))
    assert [(report.generation, report.source, report.step) for report in second.reformed] == [(1, Source.MEMORY, 15)]
    assert sorted(losses_of(tmp_path, "second")) == list(range(15, STEPS))


def copies_of(ask: Callable[..., dict[str, Any]], step: int) -> int:
    """Of the shard that has the fewest, in memory."""
    found = [one for one in ask("find", step=None, limit=1).get("steps", []) if one["step"] == step]
    return min(len(holders) for holders in found[0]["shards"]) if found else 0


def dead(job: Job) -> Job:
    """Its processes raise where they would be killed, so that the plane gives the job up."""
    arm(Path(job.launch.command[5]), [Fault(rank, "forward", step=KILLED_AT, kind="raise") for rank in range(job.replicas)])
    return job


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("trial", range(3))
def test_random_kills_of_ranks_and_of_whole_jobs_leave_no_trace_while_saves_go_on(trial: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    chance = random.Random(seed)
    whole = sorted(chance.sample(range(3, STEPS), 2))
    single = sorted(set(chance.sample(range(1, STEPS), 4)) - set(whole))
    phases = ("forward", "all-reduce", "vote", "before-update", "mid-update", "after-update")
    faults = [fault for step in whole for fault in killed_whole(step=step, phase=chance.choice(phases[:4]))]
    faults += [Fault(chance.randrange(2), chance.choice(phases), step=step) for step in single]
    print(f"trial {trial}, seed {seed}:", *faults, sep="\n  ")
    reference = job_of(tmp_path, "reference", 2, 1000)
    broken = job_of(tmp_path, "broken", 2, 1000, faults, spares=1)
    with memory_tiers(tmp_path, 2, namespaces=[planned("ns", replicas=2)]) as tiers:
        asyncio.run(trained(tmp_path, [reference], dict(os.environ)))
        asyncio.run(trained(tmp_path / "with", [broken], dict(os.environ), list(tiers)))
    assert_as_unbroken(tmp_path, broken, reference)
    for path in (tmp_path / "broken").glob("identities-*.jsonl"):
        assert len(set(path.read_text().splitlines())) == 1, "a survivor's objects or storage were replaced"
