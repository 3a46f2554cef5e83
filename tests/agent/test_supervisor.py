"""The supervisor with commands that know nothing of Everstep; those that train are in test_supervisor_training.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent import processes
from agent.ranks import socket_path
from agent.supervisor import Supervisor
from everstep.protocol import Assignment, Generation, Launch, Member, Process, ProcessReport, ProcessStatus, Report
from everstep.tiers import DurableReport, SavedReport

SLEEP = ("sleep", "60")


class Node:
    """A supervisor whose reports are kept."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.state_dir = folder
        self.reports: list[Report] = []
        self._environment = {"PATH": os.environ["PATH"], **environment}
        self.supervisor = self._new()

    async def assign(self, command: tuple[str, ...], *names: str, job: str = "job", grace_s: float = 2.0, **env: str) -> None:
        launch = Launch(command, str(self.state_dir), env=env)
        await self.supervisor.apply(Assignment(job, launch, tuple(Process(name) for name in names), grace_s=grace_s))

    async def until(self, status: ProcessStatus, process: str = "p-1", limit_s: float = 15.0) -> ProcessReport:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for report in self.reports:
                if isinstance(report, ProcessReport) and report.status is status and report.process == process:
                    return report
            await asyncio.sleep(0.005)
        raise AssertionError(f"no {status} of {process}: {self.reports}")

    async def restart(self) -> None:
        """What is left when an agent is killed, then its successor."""
        await self.supervisor.detach()
        self.reports = []
        self.supervisor = self._new()
        await self.supervisor.start()

    def _new(self) -> Supervisor:
        return Supervisor(
            node_id="i-1",
            address="127.0.0.1",
            state_dir=self.state_dir,
            report=lambda report: self.reports.append(report),
            environment=self._environment,
        )


def on_a_node(folder: Path, scenario: Callable[[Node], Awaitable[None]], **environment: str) -> None:
    async def run() -> None:
        node = Node(folder, **environment)
        await node.supervisor.start()
        try:
            await scenario(node)
        finally:
            await node.supervisor.stop(0.2)

    asyncio.run(run())


def is_alive(pid: int) -> bool:
    return processes.start_time(pid) is not None


def test_a_command_is_started_once_and_its_exit_and_last_lines_are_told(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        for _ in range(3):
            await node.assign(("sh", "-c", "echo out; echo problem >&2; exit 7"), "p-1")
        assert (await node.until(ProcessStatus.STARTED)).pid
        ended = await node.until(ProcessStatus.EXITED)
        assert (ended.exit_code, ended.signal, ended.tail) == (7, None, "out\nproblem")
        await node.assign(("sh", "-c", "exit 0"), "p-1")
        await asyncio.sleep(0.1)
        assert [report.status for report in node.reports] == [ProcessStatus.STARTED, ProcessStatus.EXITED]
        assert [report.status for report in node.supervisor.inventory()] == [ProcessStatus.EXITED]

    on_a_node(tmp_path, scenario)


def test_a_killed_process_is_told_within_milliseconds_with_its_signal(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1")
        pid = (await node.until(ProcessStatus.STARTED)).pid
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        ended = await node.until(ProcessStatus.EXITED)
        assert time.monotonic() - began < 2.0
        assert (ended.exit_code, ended.signal) == (None, signal.SIGKILL)

    on_a_node(tmp_path, scenario)


def test_what_is_not_listed_is_ended_and_forgotten(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1", "p-2")
        await node.until(ProcessStatus.STARTED, "p-2")
        await node.assign(SLEEP, "p-2")
        assert (await node.until(ProcessStatus.EXITED, "p-1")).signal == signal.SIGTERM
        assert [report.process for report in node.supervisor.inventory()] == ["p-2"]
        await node.assign(SLEEP)
        await node.until(ProcessStatus.EXITED, "p-2")
        assert node.supervisor.inventory() == ()
        assert list((tmp_path / "processes").iterdir()) == []

    on_a_node(tmp_path, scenario)


def test_who_ignores_the_term_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        stubborn = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        await node.assign(stubborn, "p-1", grace_s=0.3)
        await node.until(ProcessStatus.STARTED)
        while not (tmp_path / "jobs/job/p-1.log").read_text():
            await asyncio.sleep(0.01)
        await node.assign(stubborn, grace_s=0.3)
        assert (await node.until(ProcessStatus.EXITED)).signal == signal.SIGKILL

    on_a_node(tmp_path, scenario)


SAVES = """
import json, os, socket
with socket.socket(socket.AF_UNIX) as agent:
    agent.connect(os.environ["EVERSTEP_SOCKET"])
    for message in (
        {"type": "hello", "process": os.environ["EVERSTEP_PROCESS_ID"]},
        {"type": "saved", "step": 5, "stall_s": 0.1, "seconds": 0.5, "nbytes": 7, "memory_every": 5, "why": "as the job file says"},
        {"type": "durable", "namespace": "another-job-s", "step": 5, "world_size": 1, "nbytes": 7, "at": 3.0, "save": "s"},
    ):
        agent.sendall(json.dumps(message).encode() + b"\\n")
"""


def test_what_a_save_cost_and_what_is_durable_is_passed_on_for_the_job_s_own_namespace(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign((sys.executable, "-S", "-c", SAVES), "p-1", EVERSTEP_NAMESPACE="mine")
        await node.until(ProcessStatus.EXITED)
        told = [report for report in node.reports if isinstance(report, SavedReport | DurableReport)]
        assert told == [
            SavedReport("job", 5, 0.1, 0.5, 7, 5, why="as the job file says"),
            DurableReport("mine", 5, 1, 7, 3.0, "s"),
        ]

    on_a_node(tmp_path, scenario)


def test_processes_of_one_job_do_not_touch_another(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1", job="one")
        await node.assign(SLEEP, "p-2", job="two")
        await node.until(ProcessStatus.STARTED, "p-2")
        await node.assign(SLEEP, job="one")
        await node.until(ProcessStatus.EXITED, "p-1")
        assert [report.process for report in node.supervisor.inventory()] == ["p-2"]

    on_a_node(tmp_path, scenario)


def test_a_command_that_does_not_exist_is_an_exit_with_the_reason(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(("no-such-command",), "p-1")
        ended = await node.until(ProcessStatus.EXITED)
        assert ended.exit_code == 127
        assert "cannot start no-such-command" in ended.tail

    on_a_node(tmp_path, scenario)


def test_the_agents_secrets_and_path_stay_out_of_training(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(("env",), "p-1", MINE="yes")
        await node.until(ProcessStatus.EXITED)
        seen = dict(line.split("=", 1) for line in (tmp_path / "jobs/job/p-1.log").read_text().splitlines())
        assert seen["EVERSTEP_NODE_ID"] == "i-1"
        assert seen["EVERSTEP_JOB_ID"] == "job"
        assert seen["EVERSTEP_PROCESS_ID"] == "p-1"
        assert seen["EVERSTEP_SOCKET"] == str(socket_path(tmp_path))
        assert seen["EVERSTEP_DURABLE_URL"] == "file:///store/checkpoints"
        assert seen["OMP_NUM_THREADS"] == "1"
        assert seen["MINE"] == "yes"
        assert seen["LOCAL_RANK"] == "0"
        assert "PYTHONPATH" not in seen
        assert "EVERSTEP_BOOT_TOKEN" not in seen
        assert "RANK" not in seen

    on_a_node(tmp_path, scenario, PYTHONPATH="/x", EVERSTEP_BOOT_TOKEN="t", EVERSTEP_OBJECT_STORE_URL="file:///store")


def test_a_process_of_a_generation_that_is_known_gets_what_torchrun_would_give(tmp_path: Path) -> None:
    members = tuple(Member(rank, f"p-{rank}", f"n-{rank // 2}", f"10.0.0.{rank // 2}", rank % 2) for rank in range(4))
    generation = Generation("job", 7, "start", members, "10.0.0.0:1", "secret")

    async def scenario(node: Node) -> None:
        launch = Launch(("env",), str(tmp_path))
        await node.supervisor.apply(Assignment("job", launch, (Process("p-3", 3, local_rank=1),), generation))
        await node.until(ProcessStatus.EXITED, "p-3")
        seen = dict(line.split("=", 1) for line in (tmp_path / "jobs/job/p-3.log").read_text().splitlines())
        wanted = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
        assert {name: seen[name] for name in wanted} == wanted
        assert seen["MASTER_ADDR"] == "10.0.0.0"
        assert 29500 <= int(seen["MASTER_PORT"]) < 32500
        assert seen["EVERSTEP_GENERATION"] == "7"

    on_a_node(tmp_path, scenario)


def test_a_restarted_supervisor_adopts_what_runs_and_tells_its_end(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1", "p-2")
        pid = (await node.until(ProcessStatus.STARTED, "p-1")).pid
        other = (await node.until(ProcessStatus.STARTED, "p-2")).pid
        await node.restart()
        assert {report.pid for report in node.supervisor.inventory()} == {pid, other}
        await node.assign(SLEEP, "p-1", "p-2")
        await asyncio.sleep(0.05)
        assert node.reports == [], "nothing was started again"
        with (tmp_path / "exits.jsonl").open("a") as stream:
            stream.write(json.dumps({"pid": pid, "status": int(signal.SIGKILL)}) + "\n")
        os.kill(pid, signal.SIGKILL)
        assert (await node.until(ProcessStatus.EXITED, "p-1")).signal == signal.SIGKILL
        await node.assign(SLEEP, "p-1")
        await node.until(ProcessStatus.EXITED, "p-2")
        assert not is_alive(other)

    on_a_node(tmp_path, scenario)


def test_what_ended_while_no_agent_ran_is_told_by_the_next_one(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1", "p-2")
        pids = [(await node.until(ProcessStatus.STARTED, name)).pid for name in ("p-1", "p-2")]
        await node.supervisor.detach()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        (tmp_path / "exits.jsonl").write_text(json.dumps({"pid": pids[0], "status": 3 << 8}) + "\n")
        await node.restart()
        assert (await node.until(ProcessStatus.EXITED, "p-1")).exit_code == 3
        unknown = await node.until(ProcessStatus.EXITED, "p-2")
        assert (unknown.exit_code, unknown.signal) == (None, None)

    on_a_node(tmp_path, scenario)


def test_a_pid_that_is_used_again_is_not_taken_for_the_process(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.supervisor.detach()
        record = processes.Record("job", "p-1", str(tmp_path / "log"), os.getpid(), start_time=1)
        record.write(tmp_path / "processes" / "p-1.json")
        (tmp_path / "processes" / "p-2.json").write_text('{"half": ')
        await node.restart()
        await node.until(ProcessStatus.EXITED, "p-1")
        await node.assign(SLEEP)
        assert is_alive(os.getpid())

    on_a_node(tmp_path, scenario)


def test_stop_ends_everything(tmp_path: Path) -> None:
    pids: list[int] = []

    async def scenario(node: Node) -> None:
        await node.assign(SLEEP, "p-1", "p-2")
        for name in ("p-1", "p-2"):
            pids.append((await node.until(ProcessStatus.STARTED, name)).pid)

    on_a_node(tmp_path, scenario)
    assert not any(is_alive(pid) for pid in pids)


def test_processes_survive_the_sigkill_of_their_agent(tmp_path: Path) -> None:
    agent = f"""
import asyncio
from pathlib import Path
from agent.supervisor import Supervisor
from everstep.protocol import *
async def main():
    one = Supervisor(node_id="i-1", address="127.0.0.1", state_dir=Path({str(tmp_path)!r}), report=print, environment={{"PATH": "/usr/bin:/bin"}})
    await one.start()
    await one.apply(Assignment("job", Launch(("sleep", "60"), "/"), (Process("p-1"),)))
    await asyncio.sleep(60)
asyncio.run(main())
"""

    async def scenario(node: Node) -> None:
        await node.supervisor.detach()
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", agent, cwd=Path(__file__).parents[2])
        while not (records := processes.read_records(tmp_path / "processes")):
            await asyncio.sleep(0.02)
        child.kill()
        await child.wait()
        assert is_alive(records[0].pid)
        await node.restart()
        assert [report.pid for report in node.supervisor.inventory()] == [records[0].pid]

    on_a_node(tmp_path, scenario)


@pytest.mark.parametrize(
    "command, script",
    [
        (("python", "train.py", "--x"), ("train.py", ("--x",))),
        (("/usr/bin/python3.11", "a/b.py"), ("a/b.py", ())),
        (("python", "-m", "train"), None),
        (("python", "-u", "train.py"), None),
        (("bash", "train.py"), None),
        (("python",), None),
    ],
)
def test_only_a_plain_python_script_is_forked(command: tuple[str, ...], script: tuple[str, tuple[str, ...]] | None) -> None:
    found = processes.as_script(Launch(command, "/"))
    assert (found and (found.path, found.arguments)) == script


def test_a_long_state_folder_gets_a_short_socket_that_a_restart_finds(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    assert len(str(socket_path(long))) <= 100
    assert socket_path(long) == socket_path(long)
    assert socket_path(long) != socket_path(tmp_path / ("y" * 120))
