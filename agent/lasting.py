"""Faults that last: what is done when one begins, and undone when its time is over, whichever start of the agent it was that began it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent import processes
from agent.network import Network
from agent.processes import Record
from everstep.notices import NoticeKind, SpotNotice

STOPPED_S = 0.1
"""Of a slow node: how long its processes stand still at a time, and how long they run in between."""


@dataclass(frozen=True)
class Claim:
    """What is on disk about a fault. ``at`` and ``until`` are in Unix seconds; ``until`` None: until it is cleared."""

    pid: int = 0
    start_time: int = 0
    until: float | None = None
    is_done: bool = False
    kind: str = "hang-rank"
    at: float = 0.0


class Effect(Protocol):
    """One fault that holds. ``note`` says in words what is done."""

    note: str

    def begin(self) -> None: ...

    async def last(self) -> None:
        """Keeps it up; returns early when what was struck is gone."""
        ...

    def end(self, *, is_cleared: bool) -> str:
        """Undoes it; returns how, in words."""
        ...


class Hang:
    """A process stands still."""

    def __init__(self, claim: Claim) -> None:
        self._record = Record("", "", "", claim.pid, claim.start_time)
        self.note = f"SIGSTOP to {claim.pid}"

    def begin(self) -> None:
        processes.kill(self._record, signal.SIGSTOP)

    async def last(self) -> None:
        await processes.until_gone(self._record.pid)

    def end(self, *, is_cleared: bool) -> str:  # noqa: ARG002
        processes.kill(self._record, signal.SIGCONT)
        return f"SIGCONT to {self._record.pid}"


class Slow:
    """Whatever trains on the node gets half of its time, also what starts meanwhile."""

    def __init__(self, running: Callable[[], list[Record]]) -> None:
        self._running = running
        self.note = "what trains here stands still for half of the time"

    def begin(self) -> None:
        """Nothing at once."""

    async def last(self) -> None:
        while True:
            stopped = self._running()
            try:
                for record in stopped:
                    processes.kill(record, signal.SIGSTOP)
                await asyncio.sleep(STOPPED_S)
            finally:
                _go_on(stopped)
            await asyncio.sleep(STOPPED_S)

    def end(self, *, is_cleared: bool) -> str:  # noqa: ARG002
        _go_on(self._running())
        return "what trains here has all of its time again"


class Partition:
    """The agent does not reach the control plane, nor that the agent."""

    def __init__(self, fault_id: str, network: Network) -> None:
        self._fault_id = fault_id
        self._network = network
        self.note = "the agent is cut off from the control plane"

    def begin(self) -> None:
        self._network.cut(self._fault_id)

    async def last(self) -> None:
        await _for_ever()

    def end(self, *, is_cleared: bool) -> str:  # noqa: ARG002
        self._network.mend(self._fault_id)
        return "the agent is no longer cut off"


class Notice:
    """A notice that goes the way of the provider's own; taken back when it is cleared, and left to stand when its deadline comes."""

    def __init__(self, claim: Claim, announce: Callable[[SpotNotice], None]) -> None:
        self._at, self._deadline = claim.at, claim.until
        self._announce = announce
        self.note = "the notice has been given"

    def begin(self) -> None:
        self._announce(SpotNotice(NoticeKind.INTERRUPTION, self._at, self._deadline, source="injected"))

    async def last(self) -> None:
        await _for_ever()

    def end(self, *, is_cleared: bool) -> str:
        if not is_cleared:
            return "its deadline has come"
        self._announce(SpotNotice(NoticeKind.INTERRUPTION, self._at, self._deadline, source="injected", is_over=True))
        return "the notice has been taken back"


def _go_on(records: list[Record]) -> None:
    for record in records:
        processes.kill(record, signal.SIGCONT)


async def _for_ever() -> None:
    await asyncio.Event().wait()
