"""What an agent examines its node with: real processes, real sockets, a real all-reduce."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.accelerators.nvml import DIAGNOSES
from agent.health import links, stress
from agent.health.examiner import DIAGNOSIS_S, Examiner
from agent.health.limits import Limits
from agent.settings import SettingsError
from everstep.examination import Check, HealthReport, Peer, Team, Verdict
from everstep.protocol import Report
from tests.patience import LOW_FLOORS
from workers.plans import health

ROOT = Path(__file__).parents[2]
QUICK = {
    **LOW_FLOORS,
    "EVERSTEP_HEALTH_STRESS_S": "0.05",
    "EVERSTEP_HEALTH_DISK_MIB": "2",
    "EVERSTEP_HEALTH_MEMORY_MIB": "4",
    "EVERSTEP_HEALTH_LINK_MIB": "2",
    "EVERSTEP_HEALTH_TRAINING_S": "20",
}


def examiner(folder: Path, reports: list[Report], **variables: str) -> Examiner:
    environment = dict(os.environ) | QUICK | {"PYTHONPATH": str(ROOT)} | variables
    return Examiner(
        node_id="i-1", address="127.0.0.1", processors=2, state_dir=folder, environment=environment, report=reports.append
    )


def examine(folder: Path, *kinds: str, peers: tuple[Peer, ...] = (), team: Team | None = None, **variables: str) -> HealthReport:
    reports: list[Report] = []
    asyncio.run(examiner(folder, reports, **variables).hear(Check("c1", kinds, peers, team)))
    (report,) = reports
    assert isinstance(report, HealthReport)
    return report


def test_a_healthy_node_passes_its_stress_with_what_was_measured(tmp_path):
    report = examine(tmp_path, "InstanceStress")
    assert [finding.verdict for finding in report.findings] == [Verdict.PASSED] * 3
    assert all(finding.measured and finding.threshold and finding.measured >= finding.threshold for finding in report.findings)
    assert not list(tmp_path.rglob(".stress"))


def test_a_node_below_a_floor_fails_with_measured_value_and_floor(tmp_path):
    report = examine(tmp_path, "InstanceStress", EVERSTEP_HEALTH_DISK_MIB_PER_S="1000000000")
    (failed,) = [finding for finding in report.findings if finding.verdict is Verdict.FAILED]
    assert failed.threshold == 1e9
    assert failed.says.endswith("it must be at least 1e+09 MiB/s")
    assert f"disk is {failed.measured:.4g} MiB/s" in failed.says


def test_a_part_that_returns_something_else_than_it_was_given_fails():
    found = stress.judge({"cpu": 100.0, "memory": None, "disk": 50.0}, Limits())
    assert [finding.verdict for finding in found] == [Verdict.PASSED, Verdict.FAILED, Verdict.PASSED]
    assert "memory did not hold what was written" in found[1].says


def test_a_node_that_cannot_run_a_check_fails_it_and_one_that_knows_it_not_skips_it(tmp_path):
    report = examine(tmp_path, "InstanceStress", "GpuStress", EVERSTEP_HEALTH_STRESS_S="0.05", PYTHONPATH="/nowhere")
    assert [finding.verdict for finding in report.findings] == [Verdict.FAILED, Verdict.SKIPPED]
    assert "No module named" in report.findings[0].says


async def measured(count: int, limits: Limits) -> list[links.Link]:
    doors = [links.Door("127.0.0.1") for _ in range(count)]
    peers = [Peer("127.0.0.1", await door.open()) for door in doors]
    found = [await links.measure(peer, limits) for peer in peers]
    for door in doors:
        door.close()
    return found


def test_links_to_peers_are_measured_both_ways():
    found = asyncio.run(measured(2, Limits(link_mib=2)))
    assert all(link.error is None and link.mib_per_s > 1 and 0 < link.round_trip_ms < 1000 for link in found)
    (passed,) = links.judge(found, Limits(link_mib_per_s=0.1, link_ms=1000))
    assert passed.verdict is Verdict.PASSED


def _link(**changes: Any) -> links.Link:
    return replace(links.Link(Peer("127.77.0.9", 1), 1.0, 100.0), **changes)


@pytest.mark.parametrize(
    "found, says",
    [
        ([_link(mib_per_s=3)], "bandwidth to 127.77.0.9 is 3 MiB/s, it must be at least 10 MiB/s"),
        ([_link(round_trip_ms=300)], "round trip to 127.77.0.9 is 300 ms, it must be at most 100 ms"),
        ([_link(error="refused"), _link(error="refused"), _link()], "127.77.0.9 cannot be reached: refused"),
    ],
)
def test_a_node_most_of_whose_links_are_bad_fails_by_name_of_the_peer(found, says):
    judged = links.judge(found, Limits())
    assert {finding.verdict for finding in judged} == {Verdict.FAILED}
    assert says in judged[0].says


def test_one_bad_link_among_good_ones_is_noted_and_not_held_against_the_node():
    (finding,) = links.judge([_link(), _link(error="refused"), _link()], Limits())
    assert finding.verdict is Verdict.PASSED
    assert "1 of 3 links are bad" in finding.says
    assert links.judge([], Limits())[0].verdict is Verdict.SKIPPED


def test_a_peer_that_is_not_there_is_what_is_found():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        link = asyncio.run(links.measure(Peer("127.0.0.1", held.getsockname()[1]), Limits()))
    assert link.error


def test_a_door_keeps_answering_after_somebody_talked_nonsense():
    async def scenario() -> str | None:
        door = links.Door("127.0.0.1")
        port = await door.open()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10)
        writer.close()
        link = await links.measure(Peer("127.0.0.1", port), Limits(link_mib=1))
        door.close()
        return link.error

    assert asyncio.run(scenario()) is None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_nodes_that_train_together_end_with_the_same_weights(tmp_path):
    port = _free_port()

    async def scenario() -> list[Report]:
        reports: list[Report] = []
        nodes = [examiner(tmp_path / str(rank), reports) for rank in range(2)]
        orders = [Check("c1", ("MultiNodeTrainingValidation",), team=Team(rank, 2, "127.0.0.1", port)) for rank in range(2)]
        await asyncio.gather(*(node.hear(order) for node, order in zip(nodes, orders, strict=True)))
        return reports

    found = [finding for report in asyncio.run(scenario()) for finding in report.findings]
    assert [finding.verdict for finding in found] == [Verdict.PASSED] * 2
    assert "2 nodes trained 20 steps" in found[0].says


def test_without_torch_the_training_is_skipped_with_a_word(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    team = Team(0, 1, "127.0.0.1", 1)
    report = examine(tmp_path / "s", "MultiNodeTrainingValidation", team=team, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (report.findings[0].verdict, report.findings[0].says) == (
        Verdict.SKIPPED,
        "MultiNodeTrainingValidation: there is no torch on this node",
    )


@pytest.mark.slow
def test_a_partner_that_never_comes_is_a_failure_within_the_limit(tmp_path):
    team = Team(0, 2, "127.0.0.1", _free_port())
    report = examine(tmp_path, "MultiNodeTrainingValidation", team=team, EVERSTEP_HEALTH_TRAINING_S="1")
    assert report.findings[0].verdict is Verdict.FAILED
    assert "among 2 nodes" in report.findings[0].says


def test_what_was_found_is_told_again_without_burning_again(tmp_path):
    first = examine(tmp_path, "InstanceStress")
    assert examine(tmp_path, "InstanceStress", EVERSTEP_HEALTH_STRESS_S="60") == first


def test_what_was_found_is_kept_for_the_newest_examinations_alone(tmp_path):
    async def scenario() -> None:
        node = examiner(tmp_path, [])
        for number in range(100):
            await node.hear(Check(f"c{number}", ("Unknown",)))
            moment = 1_000.0 + number
            os.utime(tmp_path / "health" / f"c{number}.json", (moment, moment))

    asyncio.run(scenario())
    left = {path.stem for path in (tmp_path / "health").glob("*.json")}
    assert left == {f"c{number}" for number in range(100 - len(left), 100)}
    assert 1 < len(left) < 100


def test_a_diagnosis_of_any_level_ends_before_the_examiner_and_that_before_the_control_planes_patience():
    longest_s = max(DIAGNOSES.values()) + 60.0
    assert longest_s <= DIAGNOSIS_S < health._ANSWER.total_seconds()


def test_the_child_that_burns_ends_with_the_agent_that_asked_for_it(tmp_path):
    async def scenario() -> None:
        node = examiner(tmp_path, [], EVERSTEP_HEALTH_STRESS_S="600")
        task = asyncio.create_task(node.hear(Check("c1", ("InstanceStress",))))
        while not _burning(tmp_path):
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 20))
    _until(lambda: not _burning(tmp_path))


def _burning(folder: Path) -> bool:
    listed = subprocess.run(["pgrep", "-f", f"agent.health.stress .*{folder}"], capture_output=True, check=False)
    return listed.returncode == 0


def _until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_limits_are_read_from_the_environment_and_nonsense_is_refused_by_name():
    assert Limits.read({"EVERSTEP_HEALTH_STRESS_S": "2.5", "EVERSTEP_HEALTH_LINK_MS": ""}) == Limits(stress_s=2.5)
    for nonsense in ("soon", "nan", "0", "-1", "inf"):
        with pytest.raises(SettingsError, match="EVERSTEP_HEALTH_LINK_MS is"):
            Limits.read({"EVERSTEP_HEALTH_LINK_MS": nonsense})
