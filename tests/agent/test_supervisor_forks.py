"""Scripts that are forked from a zygote run as ``python script.py`` would run them."""

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
from agent.supervisor import Supervisor
from everstep.protocol import Assignment, Launch, Process, ProcessReport, ProcessStatus, Report
from everstep.standby import Expected, Standby
from tests.patience import PATIENCE

SCRIPT = """
import atexit, json, os, sys
from neighbour import VALUE

me = os.environ["EVERSTEP_PROCESS_ID"]
seen = {
    "name": __name__, "argv": sys.argv, "cwd": os.getcwd(), "value": VALUE, "torch": "torch" in sys.modules,
    "group": os.getpgid(0) == os.getpid(), "node": os.environ["EVERSTEP_NODE_ID"], "parent": os.getppid(),
    "torch_seed": __import__("torch").initial_seed(), "path": sys.path[0], "threads": len(os.listdir("/proc/self/task")),
}
open(f"{me}.json", "w").write(json.dumps(seen))
atexit.register(lambda: print("at exit"))
if me == "p-exit":
    sys.exit(3)
if me == "p-words":
    sys.exit("last words")
if me == "p-error":
    raise ValueError("a mistake")
if me == "p-abort":
    os.abort()
"""
NAMES = ("p-good", "p-exit", "p-words", "p-error", "p-abort")


def run_all(folder: Path, command: tuple[str, ...], names: tuple[str, ...]) -> dict[str, ProcessReport]:
    async def scenario(supervisor: Supervisor, reports: list[Report]) -> None:
        await run(supervisor, reports, Launch(command, str(folder / "work")), *names)

    return on_a_node(folder, scenario)


def on_a_node(folder: Path, scenario: Callable[[Supervisor, list[Report]], Awaitable[None]]) -> dict[str, ProcessReport]:
    reports: list[Report] = []
    work = folder / "work"
    work.mkdir()
    (work / "script.py").write_text(SCRIPT)
    (work / "neighbour.py").write_text("VALUE = 42\n")

    async def whole() -> None:
        supervisor = Supervisor(
            node_id="i-1",
            address="127.0.0.1",
            state_dir=folder / "state",
            report=reports.append,
            environment={"PATH": os.environ["PATH"]},
        )
        await supervisor.start()
        await scenario(supervisor, reports)
        await supervisor.stop(1.0)

    asyncio.run(whole())
    return ended(reports)


async def run(supervisor: Supervisor, reports: list[Report], launch: Launch, *names: str) -> None:
    """Has the processes run to their end; those that have run before are not started again."""
    await supervisor.apply(Assignment("job", launch, tuple(Process(name) for name in names)))
    deadline = time.monotonic() + 60 * PATIENCE
    while not set(names) <= set(ended(reports)) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def ended(reports: list[Report]) -> dict[str, ProcessReport]:
    found = [report for report in reports if isinstance(report, ProcessReport) and report.status is ProcessStatus.EXITED]
    return {report.process: report for report in found}


def test_a_forked_script_sees_and_ends_as_if_it_had_been_executed(tmp_path: Path) -> None:
    ends = run_all(tmp_path, ("python", "script.py", "--flag", "x"), NAMES)
    work = tmp_path / "work"
    seen = {name: json.loads((work / f"{name}.json").read_text()) for name in NAMES}
    assert len({one.pop("parent") for one in seen.values()}) == 1, "all are children of one zygote"
    for one in seen.values():
        assert one == {
            "name": "__main__",
            "argv": ["script.py", "--flag", "x"],
            "cwd": str(work),
            "value": 42,
            "torch": True,
            "group": True,
            "node": "i-1",
            "torch_seed": 67280421310721,
            "path": str(work),
            "threads": 1,
        }
    assert {name: (report.exit_code, report.signal) for name, report in ends.items()} == {
        "p-good": (0, None),
        "p-exit": (3, None),
        "p-words": (1, None),
        "p-error": (1, None),
        "p-abort": (None, 6),
    }
    assert ends["p-good"].tail == "at exit"
    assert "last words" in ends["p-words"].tail
    assert "ValueError: a mistake" in ends["p-error"].tail
    assert "zygote" not in ends["p-error"].tail, "a traceback begins with the user's own line"


def test_an_interpreter_that_cannot_be_a_zygote_runs_the_script_itself(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\ncase "$*" in *zygote*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    ends = run_all(tmp_path, (str(interpreter), "script.py"), ("p-exit",))
    assert ends["p-exit"].exit_code == 3
    assert json.loads((tmp_path / "work" / "p-exit.json").read_text())["parent"] == os.getpid()


def test_a_zygote_that_was_killed_is_replaced_at_the_next_fork(tmp_path: Path) -> None:
    def parent(name: str) -> int:
        return json.loads((tmp_path / "work" / f"{name}.json").read_text())["parent"]

    async def scenario(supervisor: Supervisor, reports: list[Report]) -> None:
        launch = Launch(("python", "script.py"), str(tmp_path / "work"))
        await run(supervisor, reports, launch, "p-good")
        os.kill(parent("p-good"), signal.SIGKILL)
        await processes.until_gone(parent("p-good"))
        await asyncio.sleep(0.3)  # until it is noticed: whoever is forked before that is started directly
        await run(supervisor, reports, launch, "p-good", "p-next")

    ends = on_a_node(tmp_path, scenario)
    assert ends["p-next"].exit_code == 0
    assert parent("p-next") not in {parent("p-good"), os.getpid()}, "started directly: after the time-out of a fork"


@pytest.mark.parametrize(("script", "folder"), [("no_script.py", "work"), ("script.py", "nowhere")])
def test_a_script_that_is_not_there_is_one_line_with_its_name(tmp_path: Path, script: str, folder: str) -> None:
    async def scenario(supervisor: Supervisor, reports: list[Report]) -> None:
        await run(supervisor, reports, Launch(("python", script), str(tmp_path / folder)), "p-1")

    ended_as = on_a_node(tmp_path, scenario)["p-1"]
    assert ended_as.exit_code == 127
    assert ended_as.tail is not None
    assert ended_as.tail.startswith(f"everstep: cannot start {script} in {tmp_path / folder}: ")
    assert len(ended_as.tail.splitlines()) == 1


# ------------------------------------------------------------ a node that stands by


def expected(folder: Path, *, is_alone: bool = False, is_plain: bool = False, **env: str) -> Expected:
    return Expected(Launch(("python", "script.py"), str(folder / "work"), env=env, is_plain=is_plain), is_alone=is_alone)


def zygotes() -> set[int]:
    """Children of this process that have been started as one."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"everstep.resilience.zygote" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
        except OSError:
            continue
    return found


async def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20 * PATIENCE
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_a_node_that_stands_by_forks_from_what_it_holds_ready_whatever_the_jobs_size(tmp_path: Path) -> None:
    held: set[int] = set()

    async def scenario(supervisor: Supervisor, reports: list[Report]) -> None:
        supervisor.stand_by(Standby((expected(tmp_path, WORLD_SIZE="8", EVERSTEP_NAMESPACE="one", LR="0.1"),)))
        await until(lambda: len(zygotes()) == 1)
        held.update(zygotes())
        launch = Launch(
            ("python", "script.py"), str(tmp_path / "work"), env={"WORLD_SIZE": "4", "EVERSTEP_NAMESPACE": "b", "LR": "0.1"}
        )
        await run(supervisor, reports, launch, "p-good")
        assert zygotes() == held
        await supervisor.apply(Assignment("job", launch))
        assert zygotes() == held, "it stands by for the next one"
        supervisor.stand_by(Standby())
        await until(lambda: not zygotes())

    on_a_node(tmp_path, scenario)
    assert {json.loads((tmp_path / "work" / "p-good.json").read_text())["parent"]} == held


def test_a_node_that_is_busy_warms_nothing_up_until_it_is_idle(tmp_path: Path) -> None:
    async def scenario(supervisor: Supervisor, reports: list[Report]) -> None:
        launch = Launch(("sleep", "60"), str(tmp_path / "work"))
        await supervisor.apply(Assignment("job", launch, (Process("p-sleep"),)))
        supervisor.stand_by(Standby((expected(tmp_path), expected(tmp_path, is_plain=True, is_alone=True))))
        await until(lambda: any(isinstance(report, ProcessReport) and report.pid for report in reports))
        assert zygotes() == set()
        await supervisor.apply(Assignment("job", launch, grace_s=0.0))
        await until(lambda: len(zygotes()) == 2)

    on_a_node(tmp_path, scenario)
