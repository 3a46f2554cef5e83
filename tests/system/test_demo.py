"""The demonstration, as a user runs it, and its claims."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.demo.story import PHASES


def demo(stack, folder, *more):
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "everstep.cli.main",
            "demo",
            "--json",
            "--home",
            str(stack.home.root),
            "--picture",
            folder / "page.png",
            *more,
        ],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 1, "one document and nothing else on standard output"
    return json.loads(found.stdout)


def check_claims(told, folder):
    assert told["status"] == "Succeeded", told
    assert (told["nodes_killed"], told["nodes"], told["node_replaced"]) == (1, 5, True), told
    assert told["steps_lost"] == 0, told
    assert told["restored_from"] == "peer", told
    assert told["survivor_pids_kept"] is True, told
    assert told["loss_last"] < told["loss_first"] - 0.5, told
    assert 0 < told["detected_s"] < told["resumed_s"], told
    assert Path(folder / "page.png").stat().st_size > 10_000


@pytest.mark.timeout(300)
def test_the_demonstration_keeps_every_promise_of_its_json_line(stack, tmp_path):
    check_claims(demo(stack, tmp_path, "--steps", "60"), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_demonstrations_in_a_row_with_the_kill_in_a_drawn_phase(stack, tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(20):
        phase = rng.choice([*PHASES, None])
        told = demo(stack, tmp_path, "--steps", "60", "--seed", str(rng.randrange(10**6)), *(["--phase", phase] if phase else []))
        print(f"{number + 1:2d} {phase or 'outside':<12} {told['timeline_s']} {told['seconds']} s", flush=True)
        check_claims(told, tmp_path)
