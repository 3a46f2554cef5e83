"""The buffer of beats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy.exc import OperationalError

from api.agents.beats import Beats
from models.ids import NodeId
from models.node.beats import Heartbeat
from tests.rows import NOW


def beat(node: str, sequence: int) -> Heartbeat:
    return Heartbeat(NodeId(node), "boot", sequence, NOW)


def test_the_newest_beat_of_each_node_is_written_in_one_batch():
    async def scenario() -> None:
        written: list[Sequence[Heartbeat]] = []

        async def write(beats: Sequence[Heartbeat]) -> None:
            written.append(beats)

        beats = Beats(write)
        for each in (beat("a", 1), beat("b", 1), beat("a", 2)):
            beats.add(each)
        await beats.flush()
        await beats.flush()
        assert written == [(beat("a", 2), beat("b", 1))]

    asyncio.run(scenario())


def test_beats_that_cannot_be_written_wait_unless_a_newer_one_has_come():
    async def scenario() -> None:
        written: list[Sequence[Heartbeat]] = []
        is_down = True

        async def write(beats: Sequence[Heartbeat]) -> None:
            if is_down:
                buffer.add(beat("a", 2))
                raise OperationalError("UPDATE", {}, Exception("down"))
            written.append(beats)

        buffer = Beats(write)
        buffer.add(beat("a", 1))
        buffer.add(beat("b", 1))
        await buffer.flush()
        is_down = False
        await buffer.flush()
        assert written == [(beat("a", 2), beat("b", 1))]

    asyncio.run(scenario())


def test_a_write_that_a_shutdown_cancels_is_made_up_by_the_last_flush():
    async def scenario() -> None:
        written: list[Sequence[Heartbeat]] = []
        began = asyncio.Event()

        async def write(beats: Sequence[Heartbeat]) -> None:
            if not began.is_set():
                began.set()
                await asyncio.sleep(60.0)
            written.append(beats)

        buffer = Beats(write)
        buffer.add(beat("a", 1))
        running = asyncio.create_task(buffer.flush())
        await began.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await buffer.flush()
        assert written == [(beat("a", 1),)]

    asyncio.run(scenario())


def test_agents_are_asked_to_beat_more_slowly_when_there_are_many():
    async def nothing(_: Sequence[Heartbeat]) -> None:
        return

    beats = Beats(nothing)
    assert beats.add(beat("a", 1)) == 1.0
    for number in range(4_000):
        beats.add(beat(str(number), 1))
    assert beats.interval_s > 4.0
