"""Faults that last, and those of a node's hardware: real processes of this test's own, and the files of a node's state."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.faults import Faults, Means, Running
from agent.network import Network
from agent.processes import Record, start_time
from everstep.notices import SpotNotice
from everstep.protocol import Fault, FaultReport, ProcessReport, ProcessStatus, Report
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SIMULATED = {"EVERSTEP_ACCELERATORS": "simulated:nvidia"}


class Node:
    """The faults of one start of an agent; ``runs`` are the processes that train there."""

    def __init__(self, folder: Path, *runs: subprocess.Popen, **environment: str) -> None:
        self.reports: list[Report] = []
        self.notices: list[SpotNotice] = []
        self.network = Network()
        records = {f"p-{run.pid}": Record("job-1", f"p-{run.pid}", "", run.pid, start_time(run.pid) or 0) for run in runs}
        told = tuple(ProcessReport("job-1", name, ProcessStatus.STARTED) for name in records)
        running = Running(lambda: told, records.get)
        means = Means(running, self.network, self._strike, self.notices.append, environment)
        self.faults = Faults("i-1", folder, means, report=self.reports.append, told=self._told)

    @property
    def outcomes(self) -> list[str]:
        return [report.outcome.value for report in self.reports if isinstance(report, FaultReport)]

    @property
    def note(self) -> str:
        (report,) = self.reports
        assert isinstance(report, FaultReport)
        return str(report.note)

    async def _strike(self, fault: Fault) -> FaultReport:
        raise NotImplementedError(fault)

    async def _told(self) -> None:
        return None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
        yield process
        process.kill()


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def until(claim: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s * PATIENCE
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def play(scene: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scene

    asyncio.run(bounded())


def test_an_xid_is_written_into_the_kernel_log_of_simulated_accelerators_once(tmp_path):
    async def scene() -> None:
        for _ in range(2):  # the second start of the agent is told again
            node = Node(tmp_path, **SIMULATED)
            await node.faults.hear(Fault("f-1", "xid", code=74, device=2))
            assert node.outcomes == ["struck"]

    play(scene())
    (line,) = (tmp_path / "accelerators" / "kmsg").read_text().splitlines()
    assert "NVRM: Xid" in line
    assert ": 74, " in line


def test_faults_that_are_over_do_not_pile_up_and_one_that_lasts_is_never_forgotten(tmp_path):
    async def scene() -> None:
        node = Node(tmp_path)
        await node.faults.hear(Fault("lasting", "partition"))
        os.utime(tmp_path / "faults" / "lasting.json", (1.0, 1.0))
        for number in range(400):
            await node.faults.hear(Fault(f"f-{number}", "spot-notice", is_over=True))
            os.utime(tmp_path / "faults" / f"f-{number}.json", (1_000.0 + number, 1_000.0 + number))
        assert node.outcomes == ["holding"] + ["ended"] * 400
        again = Node(tmp_path)
        again.faults.resume()
        assert again.network.is_cut
        again.reports.clear()
        await again.faults.hear(Fault("f-399", "spot-notice"))
        assert (again.outcomes, again.notices) == (["ended"], [])

    play(scene())
    left = {path.stem for path in (tmp_path / "faults").glob("*.json")}
    assert left == {"lasting", *(f"f-{number}" for number in range(401 - len(left), 400))}
    assert 1 < len(left) < 400


@pytest.mark.parametrize("said", [{}, {"EVERSTEP_ACCELERATORS": "nvml"}, {"EVERSTEP_ACCELERATORS": "simulated:neuron"}])
def test_an_xid_misses_a_node_without_simulated_accelerators_and_says_which_variable_gives_some(tmp_path, said):
    node = Node(tmp_path, **said)
    play(node.faults.hear(Fault("f-1", "xid", code=74)))
    assert node.outcomes == ["missed"]
    assert "EVERSTEP_ACCELERATORS=simulated:nvidia" in node.note
    assert not (tmp_path / "accelerators").exists()


def test_a_notice_goes_the_way_of_the_provider_s_and_is_withdrawn_when_it_is_cleared(tmp_path):
    async def scene() -> None:
        node = Node(tmp_path)
        before = time.time()
        await node.faults.hear(Fault("f-1", "spot-notice", seconds=60))
        (notice,) = node.notices
        assert before + 60 <= (notice.deadline or 0) <= time.time() + 60
        assert (notice.source, notice.is_over) == ("injected", False)
        again = Node(tmp_path)
        again.faults.resume()
        assert again.notices == [notice], "a later start of the agent tells the same"
        await again.faults.hear(Fault("f-1", "spot-notice", seconds=60, is_over=True))
        assert [told.is_over for told in again.notices] == [False, True]
        assert again.outcomes == ["ended"]

    play(scene())


def test_a_notice_stands_when_its_deadline_comes(tmp_path):
    async def scene() -> None:
        node = Node(tmp_path)
        await node.faults.hear(Fault("f-1", "spot-notice", seconds=0.05))
        await until(lambda: node.outcomes == ["holding", "ended"])
        assert [notice.is_over for notice in node.notices] == [False]

    play(scene())


def test_a_partition_ends_by_itself_whichever_start_of_the_agent_began_it(tmp_path):
    async def scene() -> None:
        node = Node(tmp_path)
        await node.faults.hear(Fault("f-1", "partition", seconds=0.3))
        assert (node.network.is_cut, node.outcomes) == (True, ["holding"])
        again = Node(tmp_path)
        again.faults.resume()
        assert again.network.is_cut, "cut before anything could be said"
        await until(lambda: not again.network.is_cut)
        assert again.outcomes == ["ended"]
        await again.faults.hear(Fault("f-1", "partition", seconds=0.3, is_over=True))
        assert again.outcomes == ["ended", "ended"]

    play(scene())


def test_two_partitions_last_until_both_are_over(tmp_path):
    async def scene() -> None:
        node = Node(tmp_path)
        await node.faults.hear(Fault("f-1", "partition", seconds=0.05))
        await node.faults.hear(Fault("f-2", "partition", seconds=60))
        await until(lambda: node.outcomes.count("ended") == 1)
        assert node.network.is_cut
        await node.faults.hear(Fault("f-2", "partition", is_over=True))
        assert not node.network.is_cut

    play(scene())


def test_a_slow_node_s_processes_stop_and_go_and_all_of_them_go_on_at_the_end(tmp_path, sleeper):
    async def scene() -> None:
        node = Node(tmp_path, sleeper)
        await node.faults.hear(Fault("f-1", "slow-node", seconds=60))
        for is_still in (True, False, True, False, True):
            await until(lambda is_still=is_still: stands_still(sleeper.pid) is is_still)
        await node.faults.hear(Fault("f-1", "slow-node", is_over=True))
        assert (node.outcomes, stands_still(sleeper.pid)) == (["holding", "ended"], False)

    play(scene())


def test_a_process_that_stood_still_when_its_agent_died_goes_on_when_the_time_is_over(tmp_path, sleeper):
    async def scene() -> None:
        node = Node(tmp_path, sleeper)
        await node.faults.hear(Fault("f-1", "slow-node", seconds=0.2))
        sleeper.send_signal(signal.SIGSTOP)

    play(scene())

    async def later() -> None:
        again = Node(tmp_path, sleeper)
        again.faults.resume()
        await until(lambda: again.outcomes == ["ended"])
        assert not stands_still(sleeper.pid)

    play(later())


@contextmanager
def host(tmp_path: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A process that is the node's agent as far as its end is concerned: it is told of one fault, as its last deed."""
    program = f"""
import asyncio, sys
sys.path[:0] = [{str(ROOT)!r}]
from pathlib import Path
from tests.agent.test_faults_of_nodes import Node
from everstep.protocol import Fault
import os
node = Node(Path({str(tmp_path)!r}), **{environment!r})
asyncio.run(node.faults.hear(Fault("f-1", "spot-reclaim")))
print(node.note)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"EVERSTEP_NODE_ID": "i-1"}, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_a_host_that_is_taken_back_leaves_word_for_its_provider_and_dies(tmp_path):
    word = tmp_path / "reclaimed"
    with host(tmp_path, EVERSTEP_RECLAIM_FILE=str(word)) as process:
        assert process.wait(30) == -signal.SIGKILL
    assert word.exists()


def test_a_host_of_another_provider_is_not_taken_back_from_here(tmp_path):
    with host(tmp_path) as process:
        assert "end this one at its provider" in process.communicate(timeout=30)[0]
        assert process.returncode == 0


@pytest.mark.parametrize("content", ["", "{half", "[]", '{"strange": 1}'])
def test_a_claim_that_cannot_be_read_has_struck(tmp_path: Path, sleeper: subprocess.Popen, content: str):
    async def scene() -> list[str]:
        (tmp_path / "faults").mkdir()
        (tmp_path / "faults" / "f-1.json").write_text(content)
        node = Node(tmp_path, sleeper)
        node.faults.resume()
        await node.faults.hear(Fault("f-1", "kill-rank", process=f"p-{sleeper.pid}"))
        return node.outcomes

    assert asyncio.run(scene()) == ["struck"]
    assert sleeper.poll() is None
