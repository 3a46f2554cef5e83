"""Scripts that are forked from a zygote run as ``python script.py`` would run them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from agent.supervisor import Supervisor
from everstep.protocol import Assignment, Launch, Process, ProcessReport, ProcessStatus, Report

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
    reports: list[Report] = []
    work = folder / "work"
    work.mkdir()
    (work / "script.py").write_text(SCRIPT)
    (work / "neighbour.py").write_text("VALUE = 42\n")

    async def scenario() -> None:
        supervisor = Supervisor(
            node_id="i-1",
            address="127.0.0.1",
            state_dir=folder / "state",
            report=reports.append,
            environment={"PATH": os.environ["PATH"]},
        )
        await supervisor.start()
        await supervisor.apply(Assignment("job", Launch(command, str(work)), tuple(Process(name) for name in names)))
        deadline = time.monotonic() + 60
        while len(ended(reports)) < len(names) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await supervisor.stop(1.0)

    asyncio.run(scenario())
    return ended(reports)


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


def test_an_interpreter_that_cannot_be_a_zygote_runs_the_script_itself(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\ncase "$*" in *zygote*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    ends = run_all(tmp_path, (str(interpreter), "script.py"), ("p-exit",))
    assert ends["p-exit"].exit_code == 3
    assert json.loads((tmp_path / "work" / "p-exit.json").read_text())["parent"] == os.getpid()
