"""Two examiners sum up with each other through their doors: real sockets, real gloo."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.health import links, reduce
from agent.health.examiner import Examiner
from agent.health.limits import Limits
from agent.health.reduce import Sum
from everstep.examination import Check, Finding, Floor, HealthReport, Peer, Verdict
from everstep.protocol import Report

ROOT = Path(__file__).parents[3]
KIND = "InstanceConnectivity"
QUICK = {"EVERSTEP_HEALTH_LINK_MIB": "1", "EVERSTEP_HEALTH_REDUCE_MIB": "1", "PYTHONPATH": str(ROOT)}
PEER = Peer("127.77.0.9", 1)


def examiner(
    folder: Path, address: str, reports: list[Report], *, is_busy: Callable[[], bool] = lambda: False, **more: str
) -> Examiner:
    environment = dict(os.environ) | QUICK | more
    return Examiner(
        node_id=address,
        address=address,
        processors=1,
        state_dir=folder / address,
        environment=environment,
        report=reports.append,
        is_busy=is_busy,
    )


def examined(folder: Path, check_floor: Floor | None = None, *, is_busy: bool = False, **more: str) -> list[Finding]:
    """What a node finds that has one peer."""

    async def scene() -> list[Report]:
        reports: list[Report] = []
        node = examiner(folder, "127.0.0.1", reports, **more)
        peer = examiner(folder, "127.0.0.2", [], is_busy=lambda: is_busy, **more)
        port = await peer.start()
        await node.start()
        await node.hear(Check("c1", (KIND,), (Peer("127.0.0.2", port),), floor=check_floor))
        await node.stop()
        await peer.stop()
        return reports

    (report,) = asyncio.run(scene())
    assert isinstance(report, HealthReport)
    return list(report.findings)


def test_a_node_sums_up_with_a_peer_and_fails_below_what_its_group_has_shown_with_both_values_in_the_log(tmp_path, caplog):
    """CP-13."""
    floor = Floor(mib_per_s=1e9, ms=1e9)
    link, rate, trip = examined(tmp_path, floor)
    assert (link.verdict, rate.verdict, trip.verdict) == (Verdict.PASSED, Verdict.FAILED, Verdict.PASSED)
    assert (rate.name, trip.name) == ("all_reduce_mib_per_s", "all_reduce_ms")
    assert (rate.threshold, trip.threshold) == (1e9, Limits().reduce_ms), "the stricter of both counts"
    assert rate.measured is not None
    assert 0 < rate.measured < 1e9
    says = f"bandwidth of an all-reduce with 127.0.0.2 is {rate.measured:.4g} MiB/s, it must be at least 1e+09 MiB/s"
    assert says in rate.says
    assert any(says in record.getMessage() and record.levelname == "WARNING" for record in caplog.records)


def test_a_peer_with_work_to_do_declines_and_nothing_is_held_against_the_node(tmp_path):
    link, summed = examined(tmp_path, is_busy=True, EVERSTEP_HEALTH_REDUCE_PAUSE_S="0.01")
    assert (link.verdict, summed.verdict) == (Verdict.PASSED, Verdict.SKIPPED)
    assert "no other node of the group was free" in summed.says


def test_without_torch_the_links_are_measured_and_the_sum_is_skipped(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    link, summed = examined(tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (link.verdict, summed.verdict) == (Verdict.PASSED, Verdict.SKIPPED)
    assert "there is no torch" in summed.says


def test_a_peer_that_joins_and_does_not_sum_up_is_a_failure_by_its_name(tmp_path):
    async def scene() -> list[Report]:
        reports: list[Report] = []
        node = examiner(tmp_path, "127.0.0.1", reports, EVERSTEP_HEALTH_REDUCE_S="4")
        door = links.Door("127.0.0.2", lambda _address, _port: True)
        port = await door.open()
        await node.hear(Check("c1", (KIND,), (Peer("127.0.0.2", port),)))
        door.close()
        return reports

    (report,) = asyncio.run(scene())
    assert isinstance(report, HealthReport)
    failed = report.findings[-1]
    assert failed.verdict is Verdict.FAILED
    assert "no all-reduce with 127.0.0.2" in failed.says


@pytest.mark.parametrize(
    "done, verdicts",
    [
        (Sum(PEER, 100.0, 1.0), ["passed", "passed"]),
        (Sum(PEER, 1.0, 1.0), ["failed", "passed"]),
        (Sum(PEER, 100.0, 1000.0), ["passed", "failed"]),
    ],
)
def test_bandwidth_and_latency_are_judged_each_for_itself(done, verdicts):
    assert [finding.verdict.value for finding in reduce.judge(done, (), Limits())] == verdicts


def test_a_peer_that_failed_before_another_one_did_not_is_noted():
    found = reduce.judge(Sum(PEER, 100.0, 1.0), (Sum(Peer("127.77.0.7", 1), error="closed"),), Limits())
    assert all("after none with 127.77.0.7: closed" in finding.says for finding in found)


def test_somebody_else_s_sum_is_waited_for_and_no_second_one_is_begun(tmp_path):
    async def scene() -> None:
        async def child(_command: list[str], _limit_s: float) -> tuple[int, str]:
            await asyncio.Event().wait()
            return 0, ""

        reducer = reduce.Reducer("127.0.0.1", Limits(), child=child, is_busy=lambda: False)
        assert reducer.join("127.0.0.2", 1)
        assert not reducer.join("127.0.0.3", 1)
        await reducer.stop()

    asyncio.run(scene())


def test_a_node_that_asks_others_to_sum_up_declines_until_it_is_done(tmp_path):
    async def scene() -> None:
        begun, ends = asyncio.Event(), asyncio.Event()

        async def child(_command: list[str], _limit_s: float) -> tuple[int, str]:
            begun.set()
            await ends.wait()
            return 0, '{"mib_per_s": 100.0, "ms": 1.0}'

        door = links.Door("127.0.0.2", lambda _address, _port: True)
        port = await door.open()
        reducer = reduce.Reducer("127.0.0.1", Limits(), child=child, is_busy=lambda: False)
        examining = asyncio.create_task(reducer.examine(Check("c1", (KIND,), (Peer("127.0.0.2", port),))))
        await asyncio.wait_for(begun.wait(), 5)
        assert not reducer.join("127.0.0.3", 1)
        ends.set()
        assert {finding.verdict for finding in await examining} == {Verdict.PASSED}
        assert reducer.join("127.0.0.3", 1)
        await reducer.stop()
        door.close()

    asyncio.run(scene())


def test_two_nodes_that_examine_themselves_at_once_both_come_to_a_sum(tmp_path):
    async def scene() -> list[Finding]:
        async def child(command: list[str], _limit_s: float) -> tuple[int, str]:
            await asyncio.sleep(0.01 * int(command[command.index("--size") + 1]))
            return 0, '{"mib_per_s": 100.0, "ms": 1.0}'

        limits = replace(Limits(), reduce_pause_s=0.2)
        nodes = [reduce.Reducer(f"127.0.0.{index}", limits, child=child, is_busy=lambda: False) for index in (1, 2)]
        doors = [links.Door(f"127.0.0.{index}", node.join) for index, node in enumerate(nodes, 1)]
        ports = [await door.open() for door in doors]
        peers = [Peer("127.0.0.2", ports[1]), Peer("127.0.0.1", ports[0])]
        found = await asyncio.gather(
            *(node.examine(Check("c1", (KIND,), (peer,))) for node, peer in zip(nodes, peers, strict=True))
        )
        for node, door in zip(nodes, doors, strict=True):
            await node.stop()
            door.close()
        return [finding for findings in found for finding in findings]

    found = asyncio.run(scene())
    assert [finding.verdict for finding in found] == [Verdict.PASSED] * 4
