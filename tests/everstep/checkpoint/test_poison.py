from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.checkpoint.poison import MOST, Failure, diagnosis, is_poisoned
from everstep.checkpoint.tiers import Tiers
from everstep.protocol import Source
from everstep.testing import arm
from tests.everstep.checkpoint.rewriting import poison
from tests.everstep.checkpoint.test_signals import begun, steps
from tests.everstep.plane import Job, JobFailed, Plane, script_launch

SCRIPT = Path(__file__).parents[1] / "scripts" / "train.py"
GLOBAL_BATCH = 24

numbers = itertools.count(1)


def failed(step: int, at: int, source: str = "memory") -> Failure:
    return Failure(step, "a", source, at, next(numbers))


def test_a_checkpoint_is_passed_over_after_two_failures_of_the_same_kind_and_not_before() -> None:
    once = [failed(30, 33)]
    assert not is_poisoned(once, 30, "a")
    assert not is_poisoned([*once, failed(30, 34)], 30, "a"), "in two ways is not twice in the same way"
    twice = [*once, failed(30, 33, "store")]
    assert is_poisoned(twice, 30, "a"), "the copies of a save are equal: another tier is no other checkpoint"
    assert not is_poisoned(twice, 20, "a")
    assert not is_poisoned(twice, 30, "b")


def test_one_failure_that_several_ranks_tell_is_one() -> None:
    told = failed(30, 33)
    assert diagnosis([told] * (3 * MOST)) is None
    assert not is_poisoned({told}, 30, "a")


def test_after_the_last_try_the_job_is_told_what_was_tried() -> None:
    words = diagnosis([failed(30, 33), failed(30, 33), failed(20, 21), failed(20, 21), failed(10, 12)])
    assert words is not None
    assert "step 30 from memory: NaN at step 33" in words
    assert "older pinned or exported step" in words


def test_failures_at_one_step_whatever_was_loaded_are_laid_to_that_step() -> None:
    words = diagnosis([failed(30, 33), failed(30, 33), failed(25, 33), failed(25, 33), failed(24, 33)])
    assert words is not None
    assert "NaN at step 33 whichever step it goes on from" in words


# ------------------------------------------------------------------------------------------------ in a run


@dataclass
class Store:
    """The environment of a node that has an object store alone."""

    address: str
    url: str

    def environment(self) -> dict[str, str]:
        return {"EVERSTEP_NAMESPACE": "ns", "EVERSTEP_DURABLE_URL": self.url}


def job_of(folder: Path, name: str, until: int) -> Job:
    notes = folder / name
    notes.mkdir()
    arm(notes / "faults", [])
    arguments = ("ddp", str(notes), str(until), str(notes / "faults"), "4", "4")
    return Job(name, script_launch(SCRIPT, *arguments), replicas=2, spares=0)


async def trained(folder: Path, job: Job, store: Store) -> None:
    plane = Plane(folder / f"plane-{job.name}", 1, dict(os.environ), [store])
    await plane.start()
    try:
        await plane.submit(job)
        await plane.finish(job, 80)
    finally:
        await plane.stop()


def test_a_poisoned_checkpoint_is_tried_twice_and_then_an_older_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    store = Store("127.78.99.1", (tmp_path / "objects").as_uri())
    first, second, reference = (job_of(tmp_path, name, until) for name, until in (("first", 8), ("second", 14), ("unbroken", 14)))
    asyncio.run(trained(tmp_path, first, store))
    poison(Tiers.from_environment(store.environment()), 8, 10, samples_a_step=GLOBAL_BATCH)
    asyncio.run(trained(tmp_path, second, store))
    fresh = Store("127.78.99.2", f"{store.url}/other")
    asyncio.run(trained(tmp_path, reference, fresh))
    taken = [(report.generation, report.source, report.step) for report in second.reformed if report.rank == 0]
    assert taken == [(1, Source.STORE, 10), (2, Source.STORE, 10), (3, Source.STORE, 8)]
    assert "soon after going on from the checkpoint of step 10 (store)" in second.broken[0].message
    assert {report.digest for report in second.finished.values()} == {report.digest for report in reference.finished.values()}
    assert {step: loss for step, loss in reference.losses.items() if step >= 8} == {
        step: loss for step, loss in second.losses.items() if step >= 8
    }


@pytest.mark.slow
def test_a_job_that_fails_after_load_upon_load_stops_with_a_diagnosis(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    store = Store("127.78.99.3", (tmp_path / "objects").as_uri())
    asyncio.run(trained(tmp_path, job_of(tmp_path, "first", 4), store))
    tiers = Tiers.from_environment(store.environment())
    for later in (5, 6, 7):
        poison(tiers, 4, later, samples_a_step=GLOBAL_BATCH)
    second = job_of(tmp_path, "second", 14)
    with pytest.raises(
        JobFailed,
        match=f"CheckpointsPoisoned: Training has failed {MOST} times soon after a load .step 7 from store: NaN at step 7",
    ):
        asyncio.run(trained(tmp_path, second, store))


@pytest.mark.slow
def test_a_run_alone_passes_a_poisoned_checkpoint_over_as_well(tmp_path: Path) -> None:
    environment = {"EVERSTEP_DURABLE_URL": (tmp_path / "objects").as_uri(), "EVERSTEP_NAMESPACE": "ns"}
    arm(tmp_path / "faults", [])
    for until, notes in ((8, "first"), (12, "second")):
        (tmp_path / notes).mkdir()
        run = begun([SCRIPT, "manual", tmp_path / notes, until, tmp_path / "faults", 4, 4], environment)
        run.communicate(timeout=60)
        assert run.returncode == 0
        if notes == "first":
            poison(Tiers.from_environment(environment), 8, 10, samples_a_step=GLOBAL_BATCH, world_size=1)
    assert steps(tmp_path / "second") == [8, 9, 10, 11]


@pytest.mark.slow
def test_a_run_alone_goes_on_from_an_older_step_if_the_newest_is_damaged_and_never_anew(tmp_path: Path) -> None:
    environment = {"EVERSTEP_DURABLE_URL": (tmp_path / "objects").as_uri(), "EVERSTEP_NAMESPACE": "ns"}
    arm(tmp_path / "faults", [])
    codes = []
    for until, notes in ((8, "first"), (9, "second"), (10, "third")):
        (tmp_path / notes).mkdir()
        run = begun([SCRIPT, "manual", tmp_path / notes, until, tmp_path / "faults", 4, 4], environment)
        run.communicate(timeout=60)
        codes.append(run.returncode)
        damaged = "step_8" if notes == "first" else "step_*"
        for shard in (tmp_path / "objects").rglob(f"{damaged}/checkpoint.pt"):
            whole = bytearray(shard.read_bytes())
            whole[64] ^= 1
            shard.write_bytes(whole)
    assert codes == [0, 0, 1]
    assert [steps(tmp_path / notes) for notes in ("first", "second", "third")] == [list(range(8)), list(range(4, 9)), []]
