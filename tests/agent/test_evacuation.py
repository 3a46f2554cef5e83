"""What has not left a node by the deadline is ended there, and told."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path

from agent import processes
from agent.evacuation import Evacuations, Resident
from agent.processes import Record
from everstep.local_protocol import ToAgent, ToProcess
from everstep.notices import CutReport, Evacuation
from everstep.protocol import ProcessReport, ProcessStatus, Report
from tests.agent.test_supervisor import SLEEP, Node, on_a_node

STUBBORN = ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
POLITE = ("sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done")


def cuts(node: Node) -> list[str]:
    return [report.process for report in node.reports if isinstance(report, CutReport)]


async def until_up(node: Node, process: str = "p-1") -> ProcessReport:
    """Until the script has set its trap."""
    started = await node.until(ProcessStatus.STARTED, process)
    async with asyncio.timeout(10):
        while "up" not in processes.tail_of(node.supervisor.record(process).log):
            await asyncio.sleep(0.01)
    return started


def test_what_does_not_listen_is_asked_its_grace_before_the_deadline_and_is_cut_at_it(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(STUBBORN, "p-1", job="stubborn", grace_s=0.5)
        await node.assign(POLITE, "p-2", job="polite", grace_s=0.5)
        await until_up(node, "p-1")
        await until_up(node, "p-2")
        deadline = time.time() + 1.5
        node.supervisor.evacuate(Evacuation(1, "taken back", deadline))
        polite = await node.until(ProcessStatus.EXITED, "p-2")
        assert deadline - 0.6 < time.time() < deadline
        stubborn = await node.until(ProcessStatus.EXITED, "p-1")
        assert deadline <= time.time() < deadline + 2
        assert (polite.exit_code, stubborn.signal) == (3, signal.SIGKILL)
        (cut,) = [report for report in node.reports if isinstance(report, CutReport)]
        assert (cut.job, cut.process, cut.why) == ("stubborn", "p-1", "taken back")
        told = [report for report in node.reports if report in (cut, stubborn)]
        assert told == [cut, stubborn], "why it ended is told before that it has"

    on_a_node(tmp_path, scenario)


def test_what_has_ended_by_the_deadline_is_not_told_as_cut(tmp_path: Path) -> None:
    reports: list[Report] = []

    async def scene(residents: list[Resident], stays: subprocess.Popen[bytes]) -> None:
        evacuations = Evacuations(lambda: residents, reports.append)
        evacuations.hear(Evacuation(1, "taken back", time.time() - 1))
        await asyncio.to_thread(stays.wait, 10)
        await evacuations.stop()

    def resident(name: str, process: subprocess.Popen[bytes]) -> Resident:
        return Resident(Record("job", name, "", process.pid, processes.start_time(process.pid) or 0), 1.0, listens=True)

    ended = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    residents = [resident("p-1", ended)]
    ended.communicate()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stays:
        asyncio.run(scene([*residents, resident("p-2", stays)], stays))
    assert [report.process for report in reports if isinstance(report, CutReport)] == ["p-2"]


def test_a_withdrawn_or_later_deadline_ends_nothing_before_it(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1", grace_s=0.1)
        await node.until(ProcessStatus.STARTED)
        node.supervisor.evacuate(Evacuation(1, "taken back", time.time() + 0.4))
        node.supervisor.evacuate(Evacuation(2, "taken back later", time.time() + 60))
        await asyncio.sleep(0.7)
        node.supervisor.evacuate(Evacuation(3, "taken back", time.time() + 0.4))
        node.supervisor.evacuate(Evacuation(4, "stays", is_over=True))
        await asyncio.sleep(0.7)
        assert [report.status for report in node.supervisor.inventory()] == [ProcessStatus.STARTED]
        assert cuts(node) == []

    on_a_node(tmp_path, scenario)


def test_what_comes_up_after_the_deadline_is_ended_too_also_by_the_next_agent(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.supervisor.evacuate(Evacuation(1, "taken back", time.time() - 1))
        await node.assign(SLEEP, "p-1")
        assert (await node.until(ProcessStatus.EXITED, "p-1")).signal == signal.SIGKILL
        node.supervisor.evacuate(Evacuation(2, "stays", is_over=True))
        await node.assign(SLEEP, "p-2")
        await node.until(ProcessStatus.STARTED, "p-2")
        await node.restart()
        node.supervisor.evacuate(Evacuation(1, "taken back", time.time() - 1))
        await node.until(ProcessStatus.EXITED, "p-2")
        assert cuts(node) == ["p-2"]

    on_a_node(tmp_path, scenario)


def test_a_process_hears_of_the_notice_at_once_and_one_that_connects_later_too(tmp_path: Path) -> None:
    async def listen(node: Node, process: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "ranks.sock")
        hello = f'{{"type": "{ToAgent.HELLO}", "process": "{process}", "pid": 1, "generation": 0, "protocol": 1}}\n'
        writer.write(hello.encode())
        await writer.drain()
        return reader, writer

    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1", "p-2")
        await node.until(ProcessStatus.STARTED, "p-2")
        early, early_writer = await listen(node, "p-1")
        while not node.supervisor._door.is_connected("p-1"):
            await asyncio.sleep(0.01)
        node.supervisor.evacuate(Evacuation(7, "taken back", 9e9))
        late, late_writer = await listen(node, "p-2")
        for reader in (early, late):
            line = await asyncio.wait_for(reader.readline(), 2)
            assert f'"type": "{ToProcess.NOTICE}"'.encode() in line
            assert b'"why": "taken back"' in line
        early_writer.close()
        late_writer.close()

    on_a_node(tmp_path, scenario)
