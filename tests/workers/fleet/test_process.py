from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.live import wait_for
from workers.providers.simulated_fleet import DOOR, FleetProvider

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "workers.fleet"]


def environment(home: Path, **more: str) -> dict[str, str]:
    return os.environ | {"EVERSTEP_HOME_DIR": str(home), "EVERSTEP_API_URL": "http://127.0.0.1:9", **more}


def run(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_fleet_is_a_process_of_its_own_that_is_asked_and_struck_and_ends_when_told(tmp_path):
    scenario = tmp_path / "s.yaml"
    scenario.write_text("seed: 1\n")
    env = environment(tmp_path, EVERSTEP_SIMULATION=str(scenario))
    fleet = subprocess.Popen(PROGRAM, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "fleet" / DOOR).exists, 60)
        assert FleetProvider(tmp_path / "fleet").hosts() == ()
        struck = run("strike", "death", "--hosts", "3", env=env)
        assert (struck.returncode, json.loads(struck.stdout)) == (0, 0)
    finally:
        fleet.send_signal(signal.SIGTERM)
        assert fleet.wait(30) == 0
    assert not (tmp_path / "fleet" / DOOR).exists()


def test_a_scenario_that_is_wrong_is_one_line_and_no_traceback(tmp_path):
    (tmp_path / "s.yaml").write_text("sed: 1\n")
    wrong = run(env=environment(tmp_path, EVERSTEP_SIMULATION=str(tmp_path / "s.yaml")))
    assert wrong.returncode == 1
    assert wrong.stderr.count("\n") == 1
    assert "`sed` is not known here" in wrong.stderr
