"""Threads for what blocks: what they return and raise, and how many work at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from api.aws.hands import Hands


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), KeyboardInterrupt()])
def test_what_the_work_raises_is_raised_where_it_is_awaited(error):
    def work():
        raise error

    async def ask():
        hands = Hands(1, "test")
        with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
            await hands.do(work)
        return await hands.do(lambda: "goes on")

    assert asyncio.run(ask()) == "goes on"


def test_as_many_work_at_once_as_there_are_hands_and_the_rest_wait():
    most, waiting = 3, 4
    reached, begun, gate = threading.Event(), [], threading.Event()

    def work() -> int:
        begun.append(threading.get_ident())
        if len(begun) >= most:
            reached.set()
        gate.wait(10)
        return len(begun)

    async def ask() -> list[int]:
        hands = Hands(most, "test")
        jobs = [asyncio.create_task(hands.do(work)) for _ in range(most + waiting)]
        await asyncio.to_thread(reached.wait, 10)
        assert len(set(begun)) == len(begun) == most
        gate.set()
        return await asyncio.gather(*jobs)

    assert len(asyncio.run(ask())) == most + waiting
    assert len(begun) == most + waiting
    assert len(set(begun)) == most


def test_one_hand_is_enough_for_calls_that_come_one_after_another():
    async def ask() -> set[int]:
        hands = Hands(8, "test")
        return {await hands.do(threading.get_ident) for _ in range(20)}

    assert len(asyncio.run(ask())) == 1


def test_a_caller_who_leaves_stops_nobody():
    gate, ended = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(10)
        ended.set()

    async def ask() -> str:
        hands = Hands(1, "test")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hands.do(work), 0.01)
        gate.set()
        return await hands.do(lambda: "goes on")

    assert asyncio.run(ask()) == "goes on"
    assert ended.is_set()
