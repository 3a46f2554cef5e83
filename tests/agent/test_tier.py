"""The agent's side of a real memory tier: started by a plan, told its plans, adopted, started again, and ended with its memory given back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from agent import processes
from agent.tier import COMMAND, Tier, TierSettings
from everstep.protocol import Fault, FaultOutcome, Report
from everstep.tiers import NamespacePlan, TierPlan, TierReport
from tests.live import ROOT
from tests.patience import PATIENCE

MIB = 1 << 20
ADDRESS = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250 + 1}"
_NUMBERS = count(1)
ON = TierPlan(number=7, allocation_percent=25, secret="s", namespaces=(NamespacePlan("space", "job-1", "token-of-job-1"),))


class Node:
    """An agent's tier whose reports are kept, and the place where its memory lies."""

    def __init__(self, folder: Path, memory: Path, command: tuple[str, ...] = COMMAND) -> None:
        address = f"{ADDRESS}.{next(_NUMBERS)}"
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "EVERSTEP_NODE_ID": f"i-{folder.name}",
            "EVERSTEP_AGENT_STATE": str(folder),
            "EVERSTEP_NODE_ADDRESS": address,
            "EVERSTEP_NODE_MEMORY_MIB": "256",
        }
        self.memory = memory
        self.reports: list[Report] = []
        self.settings = TierSettings(folder, memory, environment, command)
        self.tier = Tier(self.settings, self.reports.append)

    @property
    def pid(self) -> int | None:
        """Of the process that runs, by its record."""
        found = processes.read_records(self.settings.state_dir / "memory_tier")
        return found[0].pid if found and found[0].is_running() else None

    @property
    def has_memory(self) -> bool:
        return self.memory.exists()

    async def successor(self) -> None:
        """What is left when an agent is killed, then its next start."""
        await self.tier.detach()
        self.reports.clear()
        self.tier = Tier(self.settings, self.reports.append)
        await self.tier.start()

    async def told(self, claim: Callable[[TierReport], bool], limit_s: float = 30.0) -> TierReport:
        async def look() -> TierReport | None:
            return next((one for one in reversed(self.reports) if isinstance(one, TierReport) and claim(one)), None)

        return await until(look, limit_s)


async def until(look: Callable[[], Awaitable[object]], limit_s: float = 30.0):
    deadline = time.monotonic() + limit_s * PATIENCE
    while not (found := await look()):
        assert time.monotonic() < deadline, "not within its time"
        await asyncio.sleep(0.01)
    return found


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(f"/dev/shm/everstep-test-{os.getpid()}-{next(_NUMBERS)}")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def on_a_node(folder: Path, memory: Path, scenario: Callable[[Node], Awaitable[None]], command: tuple[str, ...] = COMMAND) -> None:
    async def run() -> None:
        node = Node(folder, memory, command)
        await node.tier.start()
        try:
            await scenario(node)
        finally:
            await node.tier.stop(is_node_gone=True)
        assert node.pid is None
        assert not node.has_memory

    asyncio.run(run())


def test_a_plan_starts_the_tier_another_size_is_told_and_none_gives_the_memory_back(tmp_path: Path, memory: Path):
    """Numbers of plans are digests: a smaller one is no older one."""

    async def scenario(node: Node) -> None:
        assert node.pid is None
        node.tier.take(ON)
        assert (await node.told(lambda told: told.plan == 7)).allocated_bytes == 64 * MIB
        first = node.pid
        node.tier.take(TierPlan(number=2, allocation_percent=50, secret="s"))
        assert (await node.told(lambda told: told.plan == 2)).allocated_bytes == 128 * MIB
        assert node.pid == first, "a change of size has restarted it"
        node.tier.take(TierPlan(number=3))
        off = await node.told(lambda told: told.plan == 3 and told.note is not None)
        assert (off.allocated_bytes, off.used_bytes, off.at > 0) == (0, 0, True)
        assert node.pid is None
        assert not node.has_memory
        node.tier.take(TierPlan(number=4, allocation_percent=25, secret="s"))
        await node.told(lambda told: told.plan == 4)

    on_a_node(tmp_path, memory, scenario)


def test_a_tier_that_is_killed_is_started_again_and_told_the_same_plan(tmp_path: Path, memory: Path):
    async def scenario(node: Node) -> None:
        node.tier.take(ON)
        await node.told(lambda told: told.plan == 7)
        first = node.pid
        node.reports.clear()
        os.kill(first, signal.SIGKILL)
        await node.told(lambda told: told.plan == 7 and told.allocated_bytes == 64 * MIB)
        assert node.pid not in (None, first)

    on_a_node(tmp_path, memory, scenario)


def test_an_agent_that_is_started_again_finds_its_tier_running_and_hears_all_anew(tmp_path: Path, memory: Path):
    async def scenario(node: Node) -> None:
        node.tier.take(ON)
        await node.told(lambda told: told.plan == 7)
        first = node.pid
        await node.successor()
        await node.told(lambda told: told.plan == 7)
        assert node.pid == first, "no plan has come yet"
        node.tier.take(TierPlan(number=2, allocation_percent=25, secret="s"))
        await node.told(lambda told: told.plan == 2)
        assert node.pid == first

    on_a_node(tmp_path, memory, scenario)


def test_a_tier_that_died_with_its_agent_is_there_again_before_any_plan(tmp_path: Path, memory: Path):
    async def scenario(node: Node) -> None:
        node.tier.take(ON)
        await node.told(lambda told: told.plan == 7)
        first = node.pid
        await node.tier.detach()
        os.kill(first, signal.SIGKILL)
        await processes.until_gone(first)
        await node.successor()
        await node.told(lambda told: told.allocated_bytes == 64 * MIB)
        assert node.pid not in (None, first)

    on_a_node(tmp_path, memory, scenario)


def test_what_a_tier_has_left_is_given_back_when_there_is_to_be_none(tmp_path: Path, memory: Path):
    (memory / "ns" / "job" / "7").mkdir(parents=True)

    async def scenario(node: Node) -> None:
        node.tier.take(TierPlan(number=7))
        await node.told(lambda told: told.plan == 7)
        assert not node.has_memory

    on_a_node(tmp_path, memory, scenario)


def test_a_tier_that_does_not_start_is_tried_again_with_pauses_and_hinders_nobody(tmp_path: Path, memory: Path):
    tries = tmp_path / "tries"
    command = (sys.executable, "-S", "-c", f"open({str(tries)!r}, 'a').write('x'); raise SystemExit(3)")

    def counted() -> int:
        return len(tries.read_text()) if tries.exists() else 0

    async def scenario(node: Node) -> None:
        async def three() -> bool:
            return counted() >= 3

        node.tier.take(ON)
        began = time.monotonic()
        await until(three)
        assert time.monotonic() - began > 0.5, "it was started without a pause"
        assert counted() < 6
        found = await node.tier.variables("job-1", "space")
        assert found["EVERSTEP_CHECKPOINT_TOKEN"] == "token-of-job-1"
        struck = await node.tier.strike(Fault("f-1", "corrupt-shard", namespace="space", step=1, index=0))
        assert struck.outcome is FaultOutcome.MISSED

    on_a_node(tmp_path, memory, scenario, command)


def test_a_process_is_told_its_namespace_and_token_as_soon_as_their_plan_has_come(tmp_path: Path, memory: Path):
    async def scenario(node: Node) -> None:
        assert (await node.tier.variables("job-9", None))["EVERSTEP_NAMESPACE"] == "job-9", (
            "a job that saves nothing waits for no plan"
        )
        asked = asyncio.create_task(node.tier.variables("job-1", "space"))
        await asyncio.sleep(0)
        node.tier.take(TierPlan(number=1, namespaces=ON.namespaces))
        found = await asyncio.wait_for(asked, 1.0)
        assert (found["EVERSTEP_NAMESPACE"], found["EVERSTEP_CHECKPOINT_TOKEN"]) == ("space", "token-of-job-1")
        assert found["EVERSTEP_CHECKPOINT_SOCKET"] == str(node.tier.door)
        began = time.monotonic()
        assert "EVERSTEP_CHECKPOINT_TOKEN" not in await node.tier.variables("job-2", "unplanned")
        assert time.monotonic() - began < 10.0

    on_a_node(tmp_path, memory, scenario)


def test_a_fault_is_struck_by_the_tier_and_answered(tmp_path: Path, memory: Path):
    async def scenario(node: Node) -> None:
        node.tier.take(ON)
        await node.told(lambda told: told.plan == 7)
        fault = Fault("f-1", "corrupt-shard", namespace="space", step=1, index=0)
        struck = await node.tier.strike(fault)
        assert (struck.fault, struck.outcome) == ("f-1", FaultOutcome.MISSED)
        assert "space" in str(struck.note)

    on_a_node(tmp_path, memory, scenario)
