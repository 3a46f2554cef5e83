"""What is found of a node's accelerators when they are examined, on simulated ones."""

from __future__ import annotations

import time
from pathlib import Path

from agent.accelerators.choice import Clocks, choose
from agent.accelerators.script import Script
from agent.health.devices import examine
from agent.health.stress import KIND
from everstep.examination import Finding, Verdict
from tests.agent.test_health import examine as examine_node

FOUR = {"EVERSTEP_ACCELERATORS": "simulated:nvidia", "EVERSTEP_NODE_ACCELERATORS": "4"}


def found(folder: Path, **environment: str) -> list[Finding]:
    accelerators = choose(environment, state_dir=folder, node="i-1", clocks=Clocks(time.time, time.monotonic))
    return examine(accelerators, "ml.c5.large", 1)


def test_all_accelerators_there_and_healthy_is_what_passes(tmp_path):
    judged = found(tmp_path, **FOUR)
    assert {finding.verdict for finding in judged} == {Verdict.PASSED}
    assert (judged[0].measured, judged[0].threshold, judged[0].unit) == (4, 4, "devices")


def test_a_lost_accelerator_fails_the_node_with_both_numbers(tmp_path):
    Script(tmp_path).lose(2)
    judged = found(tmp_path, **FOUR)
    assert judged[0].verdict is Verdict.FAILED
    assert judged[0].says == "InstanceStress: the number of accelerators is 3 devices, it must be at least 4 devices"


def test_a_host_that_is_to_have_none_has_nothing_to_be_found(tmp_path):
    assert found(tmp_path, EVERSTEP_ACCELERATORS="cpu") == []


def test_the_stress_of_a_node_takes_in_its_accelerators(tmp_path):
    Script(tmp_path).lose(0)
    report = examine_node(tmp_path, KIND, **FOUR)
    assert [finding.verdict for finding in report.findings[:3]] == [Verdict.PASSED] * 3
    assert "the number of accelerators is 3 devices" in report.findings[3].says
    assert report.findings[3].verdict is Verdict.FAILED
