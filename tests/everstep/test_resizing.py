"""A world that grows and shrinks while it trains: nobody who stays is started anew, and the training is that of any fixed size."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.data import DataOrder
from tests.everstep.plane import Job, Plane, script_launch
from tests.everstep.scripts import tokens

SCRIPT = Path(__file__).parent / "scripts" / "tokens.py"
STEPS = 60
SIZES = (4, 3, 2)
"""After two. Neither 4 nor 3 divides the global batch."""
STEPS_AT_A_SIZE = 3
LIMIT_S = 60.0


async def resized(folder: Path, mode: str, sizes: Sequence[int]) -> tuple[Job, dict[int, list[str]]]:
    """The job, and who its members were at each size."""
    plane = Plane(folder, 2, dict(os.environ))
    job = Job("resized", script_launch(SCRIPT, mode, str(folder), str(STEPS), seed=tokens.SEED), replicas=2, spares=2)
    await plane.start()
    try:
        await plane.submit(job)
        await plane.until(lambda: bool(job.generations) and len(job.ready) == 2, LIMIT_S)
        members = {2: list(job.members)}
        for replicas in sizes:
            await plane.until(lambda: len(own_steps(job, len(job.generations))) >= STEPS_AT_A_SIZE, LIMIT_S)
            await plane.resize(job, replicas)
            members[replicas] = list(job.members)
        await plane.finish(job, LIMIT_S)
    finally:
        await plane.stop()
    return job, members


def formed_at(job: Job, generation: int) -> float | None:
    """When the last of its members held the state; None before."""
    ends = [report.phases["transferred"] for report in job.reformed if report.generation == generation]
    return max(ends) if ends and len(ends) == job.generations[generation - 1].world_size else None


def own_steps(job: Job, generation: int) -> list[float]:
    """When it committed steps. The last ones of the generation before are told again in its name: not those."""
    formed = formed_at(job, generation)
    return [at for number, _, at in job.commits if formed and number == generation and at > formed]


def notes_of(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What each process noted, by its pid."""
    return {int(path.stem): [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")}


def trained_alone() -> tuple[list[float], list[float]]:
    """Losses and learning rates of one process that sees each global batch whole. Nothing of the runtime takes part in it."""
    net, optimizer, scheduler = tokens.parts()
    losses, rates = [], []
    for step in range(STEPS):
        indices = DataOrder(tokens.SIZE, tokens.SEED).indices(step * tokens.GLOBAL_BATCH, tokens.GLOBAL_BATCH)
        total, count = tokens.loss_sum(net, [tokens.sample(index) for index in indices])
        loss = total / count
        loss.backward()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses, rates


def split_of(job: Job) -> Mapping[int, tuple[float, float]]:
    """Of each change: seconds from its decision until everybody holds the state, and from then to the first step. Nothing is saved for it."""
    found = {}
    for generation in job.generations[1:]:
        formed = formed_at(job, generation.number)
        if formed is not None:
            found[generation.number] = (formed - job.published_at[generation.number], own_steps(job, generation.number)[0] - formed)
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["ddp", pytest.param("manual", marks=pytest.mark.slow)])
def test_growing_and_shrinking_changes_neither_the_samples_nor_the_mean_over_their_tokens(mode: str, tmp_path: Path) -> None:
    job, members = asyncio.run(resized(tmp_path, mode, SIZES))
    print("restart and first step, in seconds:", split_of(job))
    losses, rates = trained_alone()
    noted = notes_of(tmp_path)
    lines = [line for own in noted.values() for line in own]

    assert [job.losses[step] for step in range(STEPS)] == pytest.approx(losses, rel=1e-9)
    assert {line["step"]: line["rate"] for line in lines} == dict(enumerate(rates))
    assert [generation.world_size for generation in job.generations] == [2, 4, 3, 2]
    assert {line["world"] for line in lines} == {2, 3, 4}
    assert all(line["scale"] == tokens.SCALE.get(line["world"], {}) for line in lines)

    for step in range(STEPS):
        seen = [index for line in lines if line["step"] == step for index, _ in line["samples"]]
        assert Counter(seen) == Counter(
            DataOrder(tokens.SIZE, tokens.SEED).indices(step * tokens.GLOBAL_BATCH, tokens.GLOBAL_BATCH)
        )

    stayed = members[2]
    assert all(process in names for names in members.values() for process in stayed)
    for process in stayed:
        own = noted[job.pids[process]]
        assert [line["step"] for line in own] == list(range(STEPS)), "one process, from the first step to the last"
        assert len({json.dumps(line["kept"]) for line in own}) == 1, "model, optimizer and storage stay"
    assert len({report.digest for report in job.finished.values()}) == 1
    assert all(report.copies == job.generations[report.generation - 1].world_size for report in job.reformed)
    for report in job.broken:  # whoever hears of the change later sees the connections of the others close
        assert report.at >= job.published_at[report.generation + 1], "nothing breaks before the change is decided"


def test_a_size_that_is_no_number_of_ranks_is_refused_by_name() -> None:
    state = everstep.State(model=torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"scale\['2'\]"):
        everstep.resilient(state, scale={"2": {}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"scale\[0\]"):
        everstep.resilient(state, scale={0: {}})
