from __future__ import annotations

import json
from pathlib import Path

import pytest

from everstep.checkpoint.tiers import Tiers
from tests.everstep.checkpoint.test_checkpointer import ended, lines, losses, started, store_alone

SCRIPT = Path(__file__).parents[1] / "scripts" / "trainer.py"
STEPS = 12


@pytest.mark.timeout(180)
def test_a_trainer_that_is_killed_goes_on_as_if_unbroken_and_writes_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    broken = {"notes": "broken", "environment": store_alone(tmp_path)}
    unbroken = {"notes": "unbroken", "environment": store_alone(tmp_path, "other")}
    codes, words = ended(started(tmp_path, [{**broken, "dies_at": 8}, unbroken], [broken], script=SCRIPT), 160)
    assert codes == [[[-9], [0]], [[0]]], words
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    assert sorted(losses(tmp_path / "broken")) == list(range(STEPS))
    rates = {line["step"]: line["rate"] for line in lines(tmp_path / "unbroken")}
    assert all(line["rate"] == rates[line["step"]] for line in lines(tmp_path / "broken"))
    assert len({line["pid"] for line in lines(tmp_path / "broken")}) == 2
    first = [line["step"] for line in lines(tmp_path / "broken")]
    assert first != list(range(STEPS)), "it began again somewhere"
    assert first.count(0) == 1, "but not at the beginning"
    ends = [json.loads((tmp_path / name / "end.json").read_text()) for name in ("broken", "unbroken")]
    assert ends[0]["weights"] == ends[1]["weights"]
    assert ends[0]["counted"] == ends[1]["counted"] == list(range(1, STEPS + 1))
    assert not list(tmp_path.glob("*/out/checkpoint-*"))
    (found,) = Tiers.from_environment(store_alone(tmp_path)).latest()
    assert (found.step, found.is_durable) == (STEPS, True)
