"""The supervisor with processes that train: errors, losses of everything, its own restart, changes of size."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from itertools import groupby
from pathlib import Path

import pytest

from everstep.protocol import Source
from everstep.testing import Fault, arm
from tests.everstep.plane import Job, JobFailed, Plane, script_launch

SCRIPTS = Path(__file__).parents[1] / "everstep" / "scripts"
LIMIT_S = 60.0
pytestmark = pytest.mark.timeout(120)


def train(
    folder: Path,
    scenario: Callable[[Plane, Job], Awaitable[None]],
    *,
    kind: str = "plain",
    until: int = 30,
    replicas: int = 2,
    spares: int = 0,
    nodes: int = 1,
    faults: tuple[Fault, ...] = (),
) -> Job:
    job = a_job(folder, "job", kind, until, replicas, spares, faults)
    asyncio.run(on_a_plane(folder, nodes, {job.name: (job, scenario)}))
    return job


def train_beside_an_unbroken_run(
    folder: Path, scenario: Callable[[Plane, Job], Awaitable[None]], *, kind: str, spares: int, faults: tuple[Fault, ...] = ()
) -> tuple[Job, Job]:
    """Both at once on the same nodes: they share what it costs to import torch."""
    whole = a_job(folder, "whole", kind, 40, 3, 0, ())
    job = a_job(folder, "job", kind, 40, 3, spares, faults)
    asyncio.run(on_a_plane(folder, 1, {"job": (job, scenario), "whole": (whole, to_the_end)}))
    return whole, job


def a_job(folder: Path, name: str, kind: str, until: int, replicas: int, spares: int, faults: tuple[Fault, ...]) -> Job:
    arm(folder / f"{name}.faults", faults)
    launch = script_launch(SCRIPTS / "small.py", kind, str(folder), str(until), str(folder / f"{name}.faults"))
    return Job(name, launch, replicas, spares)


async def on_a_plane(folder: Path, nodes: int, jobs: dict[str, tuple[Job, Callable[[Plane, Job], Awaitable[None]]]]) -> None:
    plane = Plane(folder, nodes, dict(os.environ))
    await plane.start()
    try:
        for job, _ in jobs.values():
            await plane.submit(job)
        for job, scenario in jobs.values():
            await scenario(plane, job)
    finally:
        await plane.stop()


async def to_the_end(plane: Plane, job: Job) -> None:
    await plane.finish(job, LIMIT_S)


def test_a_job_trains_to_its_end_and_its_script_goes_on_after_it(tmp_path: Path) -> None:
    job = train(tmp_path, to_the_end, spares=1)
    assert sorted(job.losses) == list(range(30))
    assert job.losses[29] < job.losses[0]
    said = sorted(path.read_text() for path in tmp_path.glob("left-*"))
    assert said == [f"trained 30 steps, left as rank {rank} of 2" for rank in range(2)]
    assert all(report.exit_code == 0 for report in job.exits)


def test_collectives_of_users_and_their_own_groups_work_in_each_generation(tmp_path: Path) -> None:
    job = train(tmp_path, to_the_end, kind="collectives", replicas=3, spares=1, faults=(Fault(0, "forward", step=9),))
    assert len(job.generations) == 2
    assert sorted(job.losses) == list(range(30))


def test_ranks_that_begin_with_different_weights_train_those_of_rank_0(tmp_path: Path) -> None:
    job = train(tmp_path, to_the_end, kind="unseeded", replicas=3)
    assert sorted(report.source for report in job.reformed) == [Source.INITIAL, Source.PEER, Source.PEER]
    assert len({report.digest for report in job.finished.values()}) == 1


def test_an_error_in_user_code_is_told_with_its_traceback_and_ends_the_process(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="the user's own mistake") as failure:
        train(tmp_path, to_the_end, kind="fails")
    assert "small.py" in str(failure.value)
    assert "drive.py" not in str(failure.value), "it begins with the user's own line"


def test_a_step_that_is_never_committed_is_an_error_not_an_endless_loop(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"with run\.update"):
        train(tmp_path, to_the_end, kind="forgets")


def test_when_everybody_who_held_the_state_is_gone_the_job_fails_in_words(tmp_path: Path) -> None:
    faults = tuple(Fault(rank, "forward", step=5) for rank in range(2))

    async def scenario(plane: Plane, job: Job) -> None:
        await plane.until(lambda: len([report for report in job.exits if report.signal == signal.SIGKILL]) == 2, LIMIT_S)
        await plane.finish(job, LIMIT_S)

    with pytest.raises(JobFailed, match="never starts again from the initial weights"):
        train(tmp_path, scenario, faults=faults)


def test_a_death_while_the_first_generation_forms_costs_nothing(tmp_path: Path) -> None:
    job = train(tmp_path, to_the_end, replicas=3, spares=1, faults=(Fault(1, "construct", generation=1),))
    assert sorted(job.losses) == list(range(30))
    assert len(job.generations) == 2


def test_training_does_not_notice_a_restart_of_its_agent_and_still_survives_a_kill(tmp_path: Path) -> None:
    async def scenario(plane: Plane, job: Job) -> None:
        await plane.until(lambda: len(job.losses) > 5, LIMIT_S)
        for node in plane.nodes:
            await plane.restart_supervisor(node)
        before = len(job.losses)
        await plane.until(lambda: len(job.losses) > before + 10, LIMIT_S)
        assert len(job.generations) == 1
        assert job.exits == []
        os.kill(job.pids[job.members[0]], signal.SIGKILL)
        await plane.finish(job, LIMIT_S)

    job = train(tmp_path, scenario, replicas=3, spares=1, nodes=2, until=100)
    assert sorted(job.losses) == list(range(100))
    assert len(job.generations) == 2
    assert {report.source for report in job.reformed if report.generation == 2} >= {Source.KEPT, Source.PEER}


def test_a_kill_after_the_last_step_still_gives_everybody_the_final_state(tmp_path: Path) -> None:
    job = train(tmp_path, to_the_end, replicas=3, spares=1, faults=(Fault(1, "after-update", step=29),))
    assert len({report.digest for report in job.finished.values()}) == 1
    assert len(job.finished) == 3
    assert len(job.generations) == 2


def test_user_code_that_swallows_the_error_of_a_collective_does_no_harm(tmp_path: Path) -> None:
    faults = (Fault(1, "forward", step=5), Fault(2, "forward", step=12), Fault(0, "forward", step=20))
    whole, broken = train_beside_an_unbroken_run(tmp_path, to_the_end, kind="swallows", spares=1, faults=faults)
    assert broken.losses == whole.losses
    assert len(broken.generations) == 4


def test_a_rank_that_hangs_is_replaced_while_it_still_lives(tmp_path: Path) -> None:
    async def scenario(plane: Plane, job: Job) -> None:
        await plane.until(lambda: len(job.losses) > 5, LIMIT_S)
        victim = job.members[1]
        os.kill(job.pids[victim], signal.SIGSTOP)
        await asyncio.sleep(0.2)
        stuck_at = len(job.losses)
        await plane.replace(job, victim)
        await plane.until(lambda: len(job.losses) > stuck_at + 3, LIMIT_S)
        assert victim not in {report.process for report in job.exits}
        await plane.finish(job, LIMIT_S)
        await plane.until(lambda: victim in {report.process for report in job.exits}, LIMIT_S)

    job = train(tmp_path, scenario, replicas=3, spares=1, until=60)
    assert sorted(job.losses) == list(range(60))


def test_a_job_goes_on_with_fewer_and_with_more_ranks_and_the_same_global_batch(tmp_path: Path) -> None:
    async def scenario(plane: Plane, job: Job) -> None:
        await plane.until(lambda: len(job.losses) > 3, LIMIT_S)
        await plane.resize(job, 2)
        smaller = len(job.losses)
        await plane.until(lambda: len(job.losses) > smaller + 3, LIMIT_S)
        await plane.resize(job, 3)
        await plane.finish(job, LIMIT_S)

    whole, resized = train_beside_an_unbroken_run(tmp_path, scenario, kind="slow", spares=0)
    # A busy machine may cost one more generation of the same size.
    assert [size for size, _ in groupby(generation.world_size for generation in resized.generations)] == [3, 2, 3]
    assert sorted(resized.losses) == list(range(40))
    assert list(resized.losses.values()) == pytest.approx(list(whole.losses.values()), rel=1e-4)
