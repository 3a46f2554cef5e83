"""Sharded worlds that grow and shrink while they train: rows move to other seats, and the training is that of any fixed size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.protocol import Source
from tests.everstep.plane import Job
from tests.everstep.scripts import tokens
from tests.everstep.test_resizing import STEPS, notes_of, resized, trained_alone

EARLY = "a peer's connections have closed"
"""Told by whoever sees a peer go before hearing of the generation for which it goes."""
OBJECTS = 2
"""Of what a process notes as kept, the first are the model and the optimizer; storage follows."""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("mode", "sizes"), [pytest.param("fsdp", (4, 3, 2), marks=pytest.mark.slow), ("hsdp", (4, 2))])
def test_a_sharded_world_that_is_resized_trains_as_if_it_were_whole(mode: str, sizes: Sequence[int], tmp_path: Path) -> None:
    job, members = asyncio.run(resized(tmp_path, mode, sizes))
    assert [generation.world_size for generation in job.generations] == [2, *sizes]
    losses, _ = trained_alone()
    assert [job.losses[step] for step in range(STEPS)] == pytest.approx(losses, rel=1e-9)
    for report in job.broken:
        ended_at = job.published_at.get(report.generation + 1)
        assert report.message == EARLY or (ended_at is not None and report.at >= ended_at), (
            "a collective of a generation that goes on has failed"
        )

    noted = notes_of(tmp_path)
    lines = [line for own in noted.values() for line in own]
    assert {line["world"] for line in lines} == {2, *sizes}
    for line in lines:
        pair = tokens.pair_of(line["rank"], line["world"])
        assert line["pair"] == [len(pair), sum(pair)], "the user's own group is that of the generation"
    for process in members[2]:
        own = noted[job.pids[process]]
        assert sorted({line["step"] for line in own}) == list(range(STEPS)), "one process, from the first step to the last"
        assert len({json.dumps(line["kept"][:OBJECTS]) for line in own}) == 1, "model and optimizer stay"
        storages = {json.dumps(line["kept"][OBJECTS:]) for line in own}
        assert mode == "fsdp" or len(storages) == 1, "what has kept its seat has kept its storage"
    assert sources_of(job) <= {Source.INITIAL, Source.KEPT, Source.ROLLED_FORWARD, Source.PEER}, (
        "nothing was read from a checkpoint"
    )
    told = {(report.copies, report.worst_loss) for report in job.reformed}
    assert told == {"fsdp": {(2, 1)}, "hsdp": {(2, 1), (2, 0)}}[mode], "a buddy's copy, of a step before, or another replica's"


def sources_of(job: Job) -> set[Source]:
    return {report.source for report in job.reformed}
