"""The agent's loop in this process, on a node that runs nothing, against a real API."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.client import ControlPlane
from agent.faults import Faults, Means, Running
from agent.health.examiner import Examiner
from agent.identity import Identity
from agent.lifecycle import Lifecycle
from agent.logs import Logs
from agent.loop import Agent, Parts
from agent.monitor import Monitor
from agent.network import Network
from agent.notices import Notices
from agent.outbox import Outbox
from agent.pauses import Pauses
from agent.settings import Settings
from agent.tier import Tier, TierSettings
from everstep.protocol import Assignment, ProcessReport, ProcessStatus
from models.job.states import ProcessState
from models.job.table import JobProcess
from models.session import Sessions
from tests.live import Place, ThreadedApi, Work


@dataclass
class Idle:
    """A supervisor with nothing to do. Remembers how it was ended."""

    ended: list[str] = field(default_factory=list)
    fails: bool = False

    async def start(self) -> int:
        return 4000

    def inventory(self) -> tuple[ProcessReport, ...]:
        if self.fails:
            message = "a fault of the agent's own"
            raise RuntimeError(message)
        return ()

    async def apply(self, assignment: Assignment) -> None:  # noqa: ARG002  (the seam's names)
        raise AssertionError

    async def stop(self, grace_s: float) -> None:  # noqa: ARG002  (as above)
        self.ended.append("stopped")

    async def detach(self) -> None:
        self.ended.append("detached")


Make = Callable[[Idle], Agent]


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def make(api: ThreadedApi, place: Place, tmp_path: Path, outbox: Outbox) -> Make:
    """An agent of the place, whose reports come from ``outbox``. To be called inside a running loop."""

    def make(supervisor: Idle) -> Agent:
        memory = tmp_path / "memory"
        settings = Settings(place.instance_id, tmp_path, api.url, place.boot_token, "127.0.0.1", 2, 2048, memory)
        tier = Tier(TierSettings(tmp_path, memory, {}), outbox.put)
        means = Means(Running(supervisor.inventory, lambda _: None), Network(), tier.strike, lambda _: None, {})
        return Agent(
            Parts(
                settings=settings,
                version="0",
                identity=Identity.load(tmp_path, "boot-a"),
                supervisor=supervisor,
                control=ControlPlane(api.url),
                outbox=outbox,
                pauses=Pauses(random.Random(1)),
                lifecycle=Lifecycle(tmp_path, None, {}, time.monotonic),
                logs=Logs(tmp_path, outbox.put),
                faults=Faults("i-1", tmp_path, means, report=outbox.put, told=outbox.emptied),
                examiner=Examiner(
                    node_id="i-1", address="127.0.0.1", processors=1, state_dir=tmp_path, environment={}, report=outbox.put
                ),
                tier=tier,
                monitor=Monitor(node_id="i-1", state_dir=tmp_path, environment={}, report=outbox.put),
                notices=Notices(state_dir=tmp_path, environment={}, tell=lambda _: None, report=outbox.put),
            )
        )

    return make


def run(make: Make, then: Callable[[], Awaitable[Any]], supervisor: Idle | None = None) -> None:
    """Runs an agent until ``then`` has returned."""

    async def scenario() -> None:
        agent = make(supervisor or Idle())
        running = asyncio.create_task(agent.run())
        await then()
        agent.ask_to_end()
        await running

    asyncio.run(asyncio.wait_for(scenario(), 30.0))


async def until(claim: Callable[[], bool]) -> None:
    while not claim():
        await asyncio.sleep(0.01)


async def registered(state: Path) -> str:
    """The agent's node token, once it has one."""

    def kept() -> str | None:
        path = state / "identity.json"
        return json.loads(path.read_text())["node_token"] if path.exists() else None

    await until(lambda: kept() is not None)
    return str(kept())


def test_a_report_that_is_never_taken_does_not_hold_up_those_behind_it(
    make: Make, outbox: Outbox, work: Work, sessions: Sessions, caplog: pytest.LogCaptureFixture
):
    async def then() -> None:
        outbox.put(ProcessReport(work.job_id, work.process_id, ProcessStatus.STARTED, pid=1))
        outbox.put(ProcessReport(work.job_id, work.process_id, ProcessStatus.EXITED, exit_code=2**50))
        outbox.put(ProcessReport(work.job_id, work.process_id, ProcessStatus.READY, pid="no number"))  # type: ignore[arg-type]
        outbox.put(ProcessReport(work.job_id, work.process_id, ProcessStatus.EXITED, exit_code=7))
        await until(lambda: len(outbox) == 0)

    run(make, then)
    with sessions() as session:
        process = session.get_one(JobProcess, work.process_id)
        assert (process.state, process.exit_code) == (ProcessState.EXITED, 7)
    assert caplog.text.count("is given up") == 2


def test_an_agent_that_another_start_has_displaced_registers_again_and_loses_nothing(
    make: Make, api: ThreadedApi, place: Place, outbox: Outbox, work: Work, sessions: Sessions, tmp_path: Path
):
    async def then() -> None:
        token = await registered(tmp_path)
        other = await asyncio.to_thread(api.post, "/agent/v1/register", place.registration(token=token, boot="boot-b"))
        assert other.status_code == 200
        outbox.put(ProcessReport(work.job_id, work.process_id, ProcessStatus.EXITED, exit_code=7))
        await until(lambda: len(outbox) == 0)

    run(make, then)
    with sessions() as session:
        assert session.get_one(JobProcess, work.process_id).exit_code == 7


def test_a_fault_of_the_agent_itself_leaves_the_nodes_work_alone(make: Make):
    supervisor = Idle(fails=True)

    async def nothing() -> None:
        await until(lambda: bool(supervisor.ended))

    with pytest.raises(RuntimeError, match="own"):
        run(make, nothing, supervisor)
    assert supervisor.ended == ["detached"]


def test_an_end_that_was_asked_for_ends_the_nodes_work_and_sends_the_last_reports(
    make: Make, outbox: Outbox, work: Work, sessions: Sessions, tmp_path: Path
):
    supervisor = Idle()

    async def then() -> None:
        await registered(tmp_path)
        outbox.put(ProcessReport(work.job_id, work.process_id, ProcessStatus.EXITED, exit_code=7))

    run(make, then, supervisor)
    assert supervisor.ended == ["stopped"]
    with sessions() as session:
        assert session.get_one(JobProcess, work.process_id).exit_code == 7
