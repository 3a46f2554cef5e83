"""Randomised schedules of faults in real processes: whatever happens, and whatever it meets, the run ends, and has learnt what it should have."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.everstep.drills import draw, drilled

A_PLANE_FOR = 10
"""Schedules: then new nodes are started, so that not everything depends on what the first ones have been through."""


def first_seed() -> int:
    return int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(1 << 30)))


@pytest.mark.timeout(400)
def test_a_drawn_schedule_of_faults_loses_no_sample_and_mixes_no_parameters(tmp_path: Path) -> None:
    asyncio.run(drilled(tmp_path / "drill", [draw(first_seed(), is_short=True)]))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_two_hundred_schedules_of_faults_lose_no_sample_and_mix_no_parameters(tmp_path: Path) -> None:
    seed, fired = first_seed(), 0
    for begin in range(seed, seed + 200, A_PLANE_FOR):
        fired += asyncio.run(drilled(tmp_path / str(begin), [draw(one) for one in range(begin, begin + A_PLANE_FOR)]))
    print(f"{fired} strikes from inside")
    assert fired > 200


def test_a_seed_says_all_of_its_schedule() -> None:
    assert draw(7) == draw(7) != draw(8)
    assert str(draw(7)).startswith("seed 7: ")
