"""The tier's conversations with its node's agent: JSON lines over a Unix socket that the tier serves.

The agent says ``{"plan": …}`` and ``{"fault": …}``; the tier says ``{"report": …}``. Whoever connects is told everything anew, so nothing is
acknowledged, and either side may be started again at any time. The newest conversation is the one that is told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from agent.memory_tier.local_socket import LocalSocket, hang_up
from everstep.protocol import Fault, FaultReport
from everstep.tiers import TierPlan

log = logging.getLogger(__name__)

_LONGEST_LINE = 64 << 20
_MOST_WAITING = 100_000
"""An agent that does not listen is hung up on: when it comes back it is told everything anew."""


class Told(Protocol):
    def to_wire(self) -> dict[str, Any]: ...


class Control:
    """Serves ``path``. ``take`` and ``strike`` are called by the thread of a conversation; ``greet`` yields what a new one is told first."""

    def __init__(
        self,
        path: Path,
        *,
        take: Callable[[TierPlan], None],
        strike: Callable[[Fault], FaultReport],
        greet: Callable[[], Iterable[Told]],
    ) -> None:
        self._path = path
        self._take = take
        self._strike = strike
        self._greet = greet
        self._lock = threading.Lock()
        self._talk: _Talk | None = None
        self._socket: LocalSocket | None = None

    def start(self) -> None:
        """Raises OSError."""
        self._socket = LocalSocket(self._path, self._meet, name="control")

    def stop(self) -> None:
        """What has been reported by now is still told to an agent that listens."""
        local, self._socket = self._socket, None
        if local is None:
            return
        local.close()
        with self._lock:
            talk, self._talk = self._talk, None
        if talk is not None:
            talk.end()

    def report(self, report: Told) -> None:
        """Never blocks. Without an agent it is forgotten: the next one is told everything."""
        with self._lock:
            talk = self._talk
        if talk is not None:
            talk.tell(report)

    def _meet(self, connection: socket.socket) -> None:
        talk = _Talk(connection)
        with self._lock:
            before, self._talk = self._talk, talk
        if before is not None:
            before.hang_up()
        threading.Thread(target=self._converse, args=(talk,), name="control-talk", daemon=True).start()

    def _converse(self, talk: _Talk) -> None:
        talk.start()
        for report in self._greet():
            talk.tell(report)
        for message in talk.heard():
            if talk is not self._talk:
                break  # what an agent before the present one said last is older than what that has said
            try:
                if "plan" in message:
                    self._take(_plan(message["plan"]))
                if "fault" in message:
                    talk.tell(self._strike(Fault.from_wire(message["fault"])))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                log.error("the agent said something that cannot be read: %s", error)  # noqa: TRY400  (its content may be secret)
        talk.hang_up()


def _plan(told: dict[str, Any]) -> TierPlan:
    """Raises ValueError, TypeError: what is no plan turns no tier off."""
    plan = TierPlan.from_wire(told)
    number: object = plan.number
    percent: object = plan.allocation_percent
    if not isinstance(number, int) or not isinstance(percent, int | None):
        message = f"plan {number!r} of {percent!r} %"
        raise TypeError(message)
    return plan


class _Talk:
    """One agent's. A thread of its own writes, so that nobody waits for an agent that is slow to read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: queue.Queue[Told | None] = queue.Queue(_MOST_WAITING)
        self._writing = threading.Thread(target=self._write, name="control-write", daemon=True)

    def start(self) -> None:
        self._writing.start()

    def tell(self, report: Told | None) -> None:
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            self.hang_up()

    def heard(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError), self._connection.makefile("rb") as stream:
            while line := stream.readline(_LONGEST_LINE):
                with contextlib.suppress(ValueError):
                    told = json.loads(line)
                    if isinstance(told, dict):
                        yield told

    def end(self) -> None:
        self.tell(None)
        self._writing.join(timeout=5)
        self.hang_up()

    def hang_up(self) -> None:
        hang_up(self._connection)

    def _write(self) -> None:
        try:
            while (report := self._waiting.get()) is not None:
                line = json.dumps({"report": report.to_wire()}, separators=(",", ":")).encode() + b"\n"
                self._connection.sendall(line)
        except OSError:
            self.hang_up()
