from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from everstep.protocol import FAULTS_VARIABLE
from everstep.testing import PHASES, Fault, InjectedFault, arm, at, disarm, faults, inject, point, strikes
from everstep.testing.plans import CORRUPTIONS, KINDS, read, write
from tests.patience import PATIENCE

SCRIPT = Path(__file__).parent / "scripts" / "faulted.py"


@pytest.fixture(autouse=True)
def disarmed() -> None:
    yield
    disarm()
    faults.stand(0, 0, 0)


def passed(rank: int, step: int, phase: str = "vote", generation: int = 1) -> bool:
    """Whether an error was raised there."""
    faults.stand(rank, step, generation)
    try:
        point(phase)
    except InjectedFault:
        return True
    return False


def test_a_fault_fires_once_at_its_rank_step_and_phase(tmp_path: Path) -> None:
    arm(tmp_path / "faults", [Fault(1, "vote", step=3, kind="raise")])
    for rank, step, phase in ((0, 3, "vote"), (1, 2, "vote"), (1, 3, "forward")):
        faults.stand(rank, step, 1)
        point(phase)
    faults.stand(1, 3, 1)
    with pytest.raises(InjectedFault, match="rank 1, step 3, phase vote"):
        point("vote")
    point("vote")
    arm(tmp_path / "faults")
    point("vote")


def test_a_fault_of_a_generation_waits_for_it(tmp_path: Path) -> None:
    arm(tmp_path / "faults", [Fault(0, "agree", generation=4, kind="raise")])
    faults.stand(0, 9, 3)
    point("agree")
    faults.stand(0, 9, 4)
    with pytest.raises(InjectedFault):
        point("agree")


def test_nothing_fires_in_a_rehearsal(tmp_path: Path) -> None:
    arm(tmp_path / "faults", [Fault(0, "vote", kind="raise")])
    faults.stand(0, 0, 0, is_quiet=True)
    point("vote")


def test_injected_faults_are_armed_and_announced_within_the_block_alone() -> None:
    before = os.environ.get(FAULTS_VARIABLE)
    with inject(at("vote", rank=1, step=3).error(), at("forward", step=9).error()) as injected:
        assert {FAULTS_VARIABLE: os.environ[FAULTS_VARIABLE]} == injected.environment
        assert not passed(0, 3)
        assert passed(1, 3)
        assert [(one.fault.phase, one.rank, one.step, one.pid) for one in injected.fired] == [("vote", 1, 3, os.getpid())]
        assert injected.waiting == (Fault(None, "forward", step=9, kind="raise"),)
    assert os.environ.get(FAULTS_VARIABLE) == before
    assert not injected.path.exists()
    assert not passed(1, 9, "forward")


def test_a_block_within_a_block_gives_back_the_faults_of_the_outer_one() -> None:
    with inject(at("vote", rank=0).error()):
        with inject():
            assert not passed(0, 1)
        assert passed(0, 1)


def test_faults_by_chance_strike_at_the_same_places_on_every_run_and_none_twice() -> None:
    def struck(seed: int) -> list[tuple[int, int]]:
        with inject(at("forward").with_chance(0.2, times=1000).error(), seed=seed):
            found = [(rank, step) for step in range(60) for rank in range(3) if passed(rank, step, "forward")]
            again = [(rank, step) for rank, step in found if passed(rank, step, "forward", generation=2)]
        assert again == [], "a step that is trained again is not struck again"
        return found

    first = struck(1)
    assert first == struck(1) != struck(2)
    assert 15 < len(first) < 60


def test_no_more_strikes_than_times_whatever_the_chance() -> None:
    with inject(at("vote").with_chance(1.0, times=3).error()) as injected:
        assert sum(passed(rank, step) for step in range(5) for rank in range(2)) == 3
        assert len(injected.fired) == 3


def test_a_reform_is_struck_by_chance_once_a_generation_and_not_once_a_step() -> None:
    with inject(at("agree", rank=0).with_chance(1.0, times=9).error()):
        assert [passed(0, 4, "agree", generation) for generation in (2, 2, 3)] == [True, False, True]


def test_a_hang_of_some_seconds_ends_and_slow_steps_are_slow_as_long_as_it_says() -> None:
    with inject(at("forward", step=1).hang(0.05), at("vote", step=(2, 4)).slow(seconds=0.05), at("vote", step=5).slow(factor=3.0)):
        took = []
        for step, phase in ((1, "forward"), (1, "forward"), (2, "vote"), (3, "vote"), (3, "vote"), (4, "vote")):
            faults.stand(0, step, 1)
            began = time.monotonic()
            point(phase)
            took.append(time.monotonic() - began >= 0.05)
        assert took == [True, False, True, True, True, False]
        faults.stand(0, 5, 1)
        faults._Armed.stood_at -= 0.03
        began = time.monotonic()
        point("vote")
        assert time.monotonic() - began >= 0.06


def test_a_slow_rank_can_be_killed_at_the_same_point() -> None:
    with inject(at("vote").slow(seconds=0.001), at("vote", step=2).error()):
        assert [passed(0, step) for step in (1, 2)] == [False, True]


@pytest.mark.parametrize(("how", "factor"), [("nan", None), ("bit-flip", None), ("scale", -2.0)])
def test_a_gradient_is_corrupted_before_it_is_reduced_or_after(how: str, factor: float | None) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    model(torch.ones(2, 3)).sum().backward()
    expected = strikes.corrupted(model.bias.grad, how, factor)
    assert not torch.equal(expected, model.bias.grad)
    with inject(at("backward", step=1).corrupt(how, factor=factor), at("after-reduce", step=2).corrupt(how, factor=factor)) as told:
        faults.hook(model, None)
        faults.hook(model, None)
        for step in (1, 2):
            model.zero_grad()
            faults.stand(0, step, 1)
            point("backward")  # a script's own, without a gradient, corrupts nothing
            model(torch.ones(2, 3)).sum().backward()
            point("after-reduce")
            assert torch.equal(
                model.bias.grad,
                expected,
            ) or (how == "nan" and model.bias.grad.isnan().all())
            assert torch.equal(model.weight.grad, torch.full((1, 3), 2.0))
        assert told.waiting == ()
    model.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    assert model.bias.grad.item() == 2.0, "outside of the block nothing is corrupted"


@pytest.mark.timeout(200)
def test_a_shards_gradient_is_corrupted_for_all_ranks_before_it_is_reduced_and_for_one_after(tmp_path: Path) -> None:
    """FSDP2 on two ranks: what flows into a layer reaches everybody's shards of it and of the layers before; a shard is one rank's own."""
    script = SCRIPT.with_name("faulted_shards.py")
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[3]), "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, script, str(rank), tmp_path], env=environment) for rank in range(2)]
    assert [rank.wait(150) for rank in ranks] == [0, 0]
    first, struck = (json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in range(2))
    assert (first["waiting"], struck["waiting"]) == (2, 0)
    assert [first["sick"][step] for step in "023"] == [[], [], []]
    assert (struck["sick"]["0"], struck["sick"]["3"]) == ([], [])
    assert {name.partition(".")[0] for name in first["sick"]["1"] + struck["sick"]["1"]} == {"0", "1"}
    assert first["sick"]["1"]
    assert struck["sick"]["2"] == ["1.bias"]


@settings(max_examples=100, deadline=None)
@given(some.floats(-1e3, 1e3, width=32))
def test_a_flipped_bit_is_a_wholly_different_number_and_flips_back(value: float) -> None:
    flipped = strikes._flipped(value)
    assert math.isnan(flipped) or flipped != value
    assert math.isnan(flipped) or strikes._flipped(flipped) == value


REFUSED = [
    ({"phase": "vot"}, "phase: one of forward, backward"),
    ({"rank": -1}, "rank: a whole number from 0"),
    ({"rank": True}, "rank: a whole number from 0"),
    ({"step": "3"}, "step: a whole number from 0"),
    ({"generation": 1.5}, "generation: a whole number from 0"),
    ({"kind": "explode"}, "kind: one of kill, kill-node, raise, hang, slow, corrupt"),
    ({"until": 4}, "until: a step after step"),
    ({"step": 4, "until": 4}, "until: a step after step"),
    ({"after_ms": -1}, "after_ms: a number from 0"),
    ({"after_ms": 3, "kind": "raise"}, "after_ms: only kills"),
    ({"seconds": 0, "kind": "hang"}, "seconds: a number above 0"),
    ({"seconds": 3}, "seconds: a kill does not last"),
    ({"kind": "slow"}, "factor: slow wants either seconds or factor"),
    ({"kind": "slow", "factor": 2, "seconds": 1}, "factor: slow wants either"),
    ({"kind": "slow", "factor": 1}, "factor: a number above 1"),
    ({"kind": "slow", "factor": 2, "phase": "agree"}, "factor: a reform has no step"),
    ({"factor": 2}, "factor: it goes with slow"),
    ({"kind": "corrupt", "phase": "backward", "how": "scale"}, "factor: it goes with"),
    ({"kind": "corrupt", "phase": "backward", "how": "zero"}, "how: corrupt wants one of nan"),
    ({"kind": "corrupt", "phase": "vote", "how": "nan"}, "phase: gradients are at hand in backward and after-reduce"),
    ({"how": "nan"}, "how: it goes with corrupt"),
    ({"probability": 0}, "probability: a number above 0"),
    ({"probability": 1.1}, "probability: a number above 0"),
    ({"times": 0}, "times: a whole number from 1"),
]


@pytest.mark.parametrize(("members", "words"), REFUSED)
def test_what_makes_no_sense_is_refused_by_the_name_of_the_member(members: dict[str, object], words: str, tmp_path: Path) -> None:
    (tmp_path / "faults").write_text(json.dumps({"faults": [{"phase": "vote"}, {"phase": "vote", **members}]}))
    with pytest.raises(ValueError, match=r"faults\[1\]\.") as told:
        arm(tmp_path / "faults")
    assert f"faults[1].{words}" in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("3", "a list of faults is wanted"),
        ('{"faults": [], "seed": "x"}', "seed, a whole number"),
        ("[3]", r"faults\[0\]: an object"),
        ('[{"rank": 1}]', r"faults\[0\].phase: one of"),
        ('[{"phase": "vote", "ranks": 1}]', r"faults\[0\].ranks: there is no such member; there are rank, phase, step"),
    ],
)
def test_a_file_that_is_none_of_faults_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "faults").write_text(text)
    with pytest.raises(ValueError, match=words):
        arm(tmp_path / "faults")


def test_a_point_of_a_script_has_a_slash_or_is_refused() -> None:
    with inject(at("data/load", rank=0, step=1).error()):
        assert passed(0, 1, "data/load")
        with pytest.raises(ValueError, match=r"phase: .* with a slash in it; it is 'load'"):
            point("load")
    point("load")


def drawn() -> some.SearchStrategy[Fault]:
    """Faults that make sense, of every kind."""
    rank, step = some.none() | some.integers(0, 9), some.none() | some.integers(0, 99)

    def of_kind(kind: str) -> some.SearchStrategy[Fault]:
        more: dict[str, some.SearchStrategy[object]] = {}
        phase = some.sampled_from(PHASES)
        if kind in {"kill", "kill-node"}:
            more["after_ms"] = some.floats(0, 50)
        if kind == "slow":
            more["seconds"] = some.floats(0.1, 5)
        if kind == "hang":
            more["seconds"] = some.none() | some.floats(0.1, 5)
        if kind == "corrupt":
            phase, more["how"] = (
                some.sampled_from(("backward", "after-reduce")),
                some.sampled_from([one for one in CORRUPTIONS if one != "scale"]),
            )
        more["probability"], more["times"] = some.none() | some.floats(0.1, 1), some.none() | some.integers(1, 5)
        return some.builds(Fault, rank, phase, step=step, generation=rank, kind=some.just(kind), **more)

    return some.sampled_from(KINDS).flatmap(of_kind)


@settings(max_examples=60, deadline=None)
@given(planned=some.lists(drawn(), max_size=4), seed=some.integers(0, 99))
def test_what_is_written_is_read_again(planned: list[Fault], seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("faults") / "faults"
    write(path, planned, seed)
    assert read(path) == (tuple(planned), seed)


@pytest.mark.timeout(200)
def test_a_user_tests_a_training_script_with_faults_of_every_kind_that_leaves_it_alive() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    environment |= {"PYTHONPATH": str(SCRIPT.parents[3]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=50 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["an error", "a sick gradient", "slow and hung", "nothing outside of the block"]
