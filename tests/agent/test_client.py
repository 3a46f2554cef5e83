"""What the agent makes of the control plane's answers, over real HTTP."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent.client import ControlPlane, NotKnown, Rejected, Unreachable
from agent.outbox import Numbered
from everstep.embedded.children import free_port
from everstep.protocol import Beat, FailedReport, ProcessReport, ProcessStatus, ProgressReport, Registration, StepReport
from models.job.table import JobProcess, Step
from models.session import Sessions
from tests.live import Place, ThreadedApi, Work


def speak(url: str, conversation: Callable[[ControlPlane], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        control = ControlPlane(url)
        try:
            return await conversation(control)
        finally:
            await control.close()

    return asyncio.run(run())


def arrive(place: Place, then: Callable[[ControlPlane], Awaitable[Any]]) -> Callable[[ControlPlane], Awaitable[Any]]:
    """Registers first."""

    async def conversation(control: ControlPlane) -> Any:
        welcome = await control.register(Registration.from_wire(place.registration()))
        control.token = welcome.node_token
        return await then(control)

    return conversation


def test_a_control_plane_that_is_not_there_is_unreachable():
    with pytest.raises(Unreachable):
        speak(f"http://127.0.0.1:{free_port()}", lambda control: control.beat(Beat("b", 1)))


def test_an_unknown_token_is_not_known(api: ThreadedApi):
    with pytest.raises(NotKnown):
        speak(api.url, lambda control: control.beat(Beat("b", 1)))


def test_a_refused_report_is_named_by_its_place(api: ThreadedApi, place: Place, work: Work):
    good = ProcessReport(work.job_id, work.process_id, ProcessStatus.STARTED, pid=1)
    bad = ProcessReport(work.job_id, work.process_id, ProcessStatus.EXITED, exit_code="no number")  # type: ignore[arg-type]
    with pytest.raises(Rejected) as refused:
        speak(api.url, arrive(place, lambda control: control.report("boot-a", [Numbered(1, good), Numbered(2, bad)])))
    assert refused.value.index == 1


def test_halves_of_characters_in_a_traceback_do_not_stop_a_report(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    report = FailedReport(work.job_id, work.process_id, 1, "ValueError: \udcff\0 ☃")
    speak(api.url, arrive(place, lambda control: control.report("boot-a", [Numbered(1, report)])))
    with sessions() as session:
        assert session.get_one(JobProcess, work.process_id).failure == "ValueError: ?\ufffd ☃"


def test_a_loss_that_is_no_number_arrives_as_such(api: ThreadedApi, place: Place, work: Work, sessions: Sessions):
    report = ProgressReport(work.job_id, 1, (StepReport(0, 0.1, 1_900_000_000.0, float("nan")),))
    speak(api.url, arrive(place, lambda control: control.report("boot-a", [Numbered(1, report)])))
    with sessions() as session:
        loss = session.get_one(Step, (work.job_id, 0)).loss
        assert loss is not None
        assert math.isnan(loss)


def test_a_directive_that_cannot_be_read_is_not_written_to_the_log(caplog: pytest.LogCaptureFixture):
    """It holds what the job's file gave it as variables, keys among them, and the job's rendezvous token."""
    line = b'{"id": 1, "assignment": {"launch": {"command": [], "working_dir": "/", "env": {"HUB_TOKEN": "hf_secret"}}}}\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n" + line)
        await writer.drain()
        writer.close()

    async def listen() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            control = ControlPlane(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            with pytest.raises(Unreachable):
                assert [directive async for directive in control.directives()] == []
            await control.close()

    asyncio.run(listen())
    assert "cannot be read" in caplog.text
    assert "hf_secret" not in caplog.text
