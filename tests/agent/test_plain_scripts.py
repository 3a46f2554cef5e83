"""Scripts that know nothing of Everstep run as they would under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from agent import processes
from everstep.protocol import Launch, ProcessStatus, ProgressReport
from tests.agent.plain_nodes import Nodes, on_two_nodes
from tests.patience import PATIENCE

SHOW = """
import json, os, sys
rank = os.environ["RANK"]
open(f"{sys.argv[1]}{rank}.json", "w").write(json.dumps(dict(os.environ)))
"""
TRAIN = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
import everstep

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
saved = pathlib.Path("saved.json")
at = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "sum": 0.0}
open("starts.txt", "a").write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['MASTER_PORT']} {at['step']}\\n")
while at["step"] < 12:
    total = torch.tensor([at["step"] * 10.0 + rank])
    dist.all_reduce(total)
    at = {"step": at["step"] + 1, "sum": at["sum"] + total.item()}
    if rank == 0:
        draft = pathlib.Path("saved.draft")
        draft.write_text(json.dumps(at))
        draft.replace(saved)
    everstep.report_step(at["step"] - 1, at["sum"])
    dist.barrier()
    while at["step"] == 5 and not pathlib.Path("go").exists():
        time.sleep(0.02)
"""
RECORDED = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("the learning rate is negative")

main()
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close())
open(f"up{os.environ['RANK']}", "w").close()
while True:
    time.sleep(0.05)
"""

PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"],
                         stdout=subprocess.PIPE)
child.stdout.readline()
open(f"child{os.environ['RANK']}", "w").write(str(child.pid))
while not os.path.exists("done"):
    time.sleep(0.05)
"""


def directly(script: str, *arguments: str) -> tuple[str, ...]:
    """Executed rather than forked: what needs no torch starts sooner so."""
    return (sys.executable, "-u", script, *arguments)


def work(folder: Path, script: str) -> Path:
    place = folder / "work"
    place.mkdir()
    (place / "script.py").write_text(script)
    return place


def test_the_environment_is_that_of_torchrun(tmp_path: Path) -> None:
    place = work(tmp_path, SHOW)
    nodes = Nodes(tmp_path, Launch(directly("script.py", "ours"), str(place), is_plain=True, max_restarts=3), per_node=2)

    async def scenario() -> None:
        await nodes.hold()
        await nodes.form()
        await nodes.until(lambda: len(nodes.exits()) == 4)

    on_two_nodes(nodes, scenario)
    theirs = torchrun_environment(place)
    ours = [json.loads((place / f"ours{rank}.json").read_text()) for rank in range(4)]
    assert {process.exit_code for process in nodes.exits().values()} == {0}
    names = set(theirs) - set(os.environ) - {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # torchrun's word to itself: what it answers to
    assert {"RANK", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"} <= names
    for rank, seen in enumerate(ours):
        assert names - set(seen) == set()
        extra = {name for name in set(seen) - names - {"PATH", "GLOO_SOCKET_IFNAME"} if not name.startswith("EVERSTEP_")}
        assert extra - {"OMP_NUM_THREADS", "LC_CTYPE"} == set()
        assert [seen[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")] == [
            str(rank),
            str(rank % 2),
            str(rank // 2),
            str(rank),
        ]
        sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
        assert [seen[name] for name in sizes] == ["4", "2", "2", "4"]
        assert seen["OMP_NUM_THREADS"] == "1"
        same = ("ROLE_NAME", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
        assert [seen[name] for name in same] == [theirs[name] for name in same]
    assert len({(seen["MASTER_ADDR"], seen["MASTER_PORT"], seen["TORCHELASTIC_RUN_ID"]) for seen in ours}) == 1
    assert ours[0]["MASTER_ADDR"] == "127.0.0.1"


def torchrun_environment(place: Path) -> dict[str, str]:
    """Of a process that torchrun itself has started, with the same options."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    environment = dict(os.environ)  # told, because libraries may have set more behind Python's back, as readline does
    subprocess.run(
        [*command, "script.py", "theirs"], cwd=place, env=environment, check=True, capture_output=True, timeout=120 * PATIENCE
    )
    return json.loads((place / "theirs0.json").read_text())


def test_a_killed_rank_restarts_all_and_the_script_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    place = work(tmp_path, TRAIN)
    nodes = Nodes(tmp_path, Launch(("python", "script.py"), str(place), is_plain=True, max_restarts=3))

    async def scenario() -> None:
        await nodes.hold()
        first = await nodes.form()
        await nodes.until(lambda: steps(nodes) >= {0, 1, 2, 3, 4})
        os.kill(nodes.pids()[first.members[1].process], signal.SIGKILL)
        await nodes.until(lambda: first.members[1].process in nodes.exits())
        (place / "go").touch()
        await nodes.hold()
        assert {member.process for member in first.members} <= set(nodes.exits()), "new ones are ready when the old ones are gone"
        second = await nodes.form()
        await nodes.until(lambda: {member.process for member in second.members} <= set(nodes.exits()))
        assert {nodes.exits()[member.process].exit_code for member in second.members} == {0}

    on_two_nodes(nodes, scenario)
    assert json.loads((place / "saved.json").read_text()) == {"step": 12, "sum": sum(20.0 * step + 1 for step in range(12))}
    starts = [line.split() for line in (place / "starts.txt").read_text().splitlines()]
    assert [(count, step) for count, _, step in starts] == [("0", "0"), ("0", "0"), ("1", "5"), ("1", "5")]
    assert len({port for _, port, _ in starts}) == 2, "each generation meets at a port of its own"
    assert steps(nodes) == set(range(12))


def steps(nodes: Nodes) -> set[int]:
    return {step.step for report in nodes.reports if isinstance(report, ProgressReport) for step in report.steps}


def test_what_a_script_has_recorded_of_its_error_is_told_before_its_exit(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, Launch(directly("script.py"), str(work(tmp_path, RECORDED)), is_plain=True))

    async def scenario() -> None:
        await nodes.hold()
        await nodes.form()
        await nodes.until(lambda: len(nodes.exits()) == 2)

    on_two_nodes(nodes, scenario)
    assert list(nodes.failures()) == ["p-2"]
    assert nodes.failures()["p-2"].rstrip().endswith("ValueError: the learning rate is negative")
    kinds = [report.kind for report in nodes.reports if getattr(report, "process", "") == "p-2"]
    assert kinds.index("failed") < len(kinds) - 1


def test_a_script_that_ignores_sigterm_is_killed_when_its_grace_is_over_and_no_sooner_is_the_next_one_ready(tmp_path: Path) -> None:
    place = work(tmp_path, STUBBORN)
    nodes = Nodes(tmp_path, Launch(directly("script.py"), str(place), is_plain=True))

    async def scenario() -> None:
        await nodes.hold()
        first = await nodes.form()
        await nodes.until(lambda: all((place / f"up{rank}").exists() for rank in range(2)))
        await nodes.hold()
        for member in first.members:
            assert nodes.exits()[member.process].signal == signal.SIGKILL
        assert (place / "asked").exists()

    on_two_nodes(nodes, scenario)


def test_children_of_scripts_that_fail_or_are_ended_are_gone_before_the_next_ones_are_ready(tmp_path: Path) -> None:
    place = work(tmp_path, PARENT)
    nodes = Nodes(tmp_path, Launch(directly("script.py"), str(place), is_plain=True, max_restarts=3))

    async def scenario() -> None:
        await nodes.hold()
        first = await nodes.form()
        await nodes.until(lambda: all((place / f"child{rank}").exists() for rank in range(2)))
        children = [int((place / f"child{rank}").read_text()) for rank in range(2)]
        assert all(processes.start_time(child) for child in children)
        os.kill(nodes.pids()[first.members[1].process], signal.SIGKILL)
        await nodes.until(lambda: first.members[1].process in nodes.exits())
        await nodes.hold()
        assert not [child for child in children if processes.start_time(child)]

    on_two_nodes(nodes, scenario)


def test_what_a_script_that_is_done_has_left_in_its_group_is_its_own_affair(tmp_path: Path) -> None:
    place = work(tmp_path, PARENT)
    (place / "done").touch()
    nodes = Nodes(tmp_path, Launch(directly("script.py"), str(place), is_plain=True))

    async def scenario() -> None:
        await nodes.hold()
        await nodes.form()
        await nodes.until(lambda: len(nodes.exits()) == 2)
        children = [int((place / f"child{rank}").read_text()) for rank in range(2)]
        assert all(processes.start_time(child) for child in children)
        for child in children:
            os.kill(child, signal.SIGKILL)

    on_two_nodes(nodes, scenario)


def test_a_process_that_is_held_and_let_go_never_runs(tmp_path: Path) -> None:
    place = work(tmp_path, SHOW)
    nodes = Nodes(tmp_path, Launch(directly("script.py", "never"), str(place), is_plain=True))

    async def scenario() -> None:
        await nodes.hold()
        assert not nodes.pids()
        nodes.listed = {}
        await nodes.tell()
        await nodes.until(lambda: len(nodes.exits()) == 2)

    on_two_nodes(nodes, scenario)
    assert {report.signal for report in nodes.exits().values()} == {signal.SIGTERM}, "not the exit of one that was done"
    assert not list(place.glob("never*"))
    assert not nodes.of(ProcessStatus.STARTED)
