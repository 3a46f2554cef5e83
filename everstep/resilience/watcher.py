"""The thread that keeps a training process in touch with its agent.

It hears of newer generations, and then first of all fires the fence, so that a rank that waits in a collective comes free at once.
It never blocks the training thread: what that has to say is queued, and told again when the agent has restarted.

It goes on whatever happens: without it a rank would wait in a collective for ever. A message that cannot be read is left out; what a message asks
for and could not be done is done when the agent tells it again, on the next connection.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from everstep.local_protocol import ToAgent, ToProcess
from everstep.notices import Evacuation
from everstep.protocol import PROTOCOL_VERSION, Generation

_log = logging.getLogger("everstep.resilience")
_RECONNECT_S = 0.05
_MOST_DOUBLINGS = 6
"""Of the pause after failures of our own: 3.2 s at most."""
RETOLD_STEPS = 64
"""So many steps are told again: to an agent that is back, and by whoever takes over from a rank 0 whose agent was away."""
_LONGEST_READ = 1 << 16
_SAME_NOTICE_S = 1.0
_PULSE_S = 1.0
_SAID_ONCE = frozenset({ToAgent.STRAGGLER, ToAgent.ANOMALY})


class Watcher:
    """``newest`` is the newest generation heard of, member or not; ``notice`` says that the node is about to go, None while it is not.

    ``on_notice`` is called once for each notice, in the watcher's thread; so is ``pulse`` every second, for what is told of this process's health.
    """

    def __init__(self, socket_path: str, process: str, on_newer: Callable[[int], None]) -> None:
        self.newest: Generation | None = None
        self.notice: Evacuation | None = None
        self.on_notice: Callable[[], None] = _nobody
        self.pulse: Callable[[], dict[str, Any] | None] = _unwell
        self.is_dismissed = False
        self._path = socket_path
        self._process = process
        self._on_newer = on_newer
        self._news = threading.Condition()
        self._lock = threading.Lock()
        self._outbox: collections.deque[dict[str, Any]] = collections.deque()
        self._standing: dict[str, dict[str, Any]] = {}
        self._steps: collections.deque[dict[str, Any]] = collections.deque(maxlen=RETOLD_STEPS)
        self._fenced = 0
        self._owes_notice = False
        self._place: tuple[int, int | None] = (0, None)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._idle = threading.Event()
        threading.Thread(target=self._run, name="everstep-watcher", daemon=True).start()

    @property
    def newest_number(self) -> int:
        newest = self.newest
        return newest.number if newest else 0

    def stands_at(self, generation: int, step: int | None) -> None:
        """Where this process is; said in HELLO when the agent has restarted."""
        self._place = (generation, step)

    def tell(self, kind: ToAgent, **members: Any) -> None:
        """Queues a message. The latest of each kind is told again to a restarted agent, of steps the latest few."""
        message = {"type": str(kind), **members}
        with self._lock:
            if kind is ToAgent.PROGRESS:
                self._steps.append(message)
            elif kind not in _SAID_ONCE:
                self._standing[kind] = message
            self._outbox.append(message)
        os.eventfd_write(self._wake, 1)

    def withdraw(self, kind: ToAgent) -> None:
        """What was told is no longer so, and is not to be told again."""
        with self._lock:
            self._standing.pop(kind, None)

    def wait_newer(self, than: int, limit_s: float) -> bool:
        """Waits until a newer generation is known or the process is dismissed. False when the time ran out."""
        with self._news:
            return self._news.wait_for(lambda: self.is_dismissed or self.newest_number > than, limit_s)

    def flush(self, limit_s: float) -> None:
        """Waits, boundedly, until everything queued has been handed to the socket. For last words before the process ends."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and (self._outbox or not self._idle.is_set()):
            time.sleep(0.002)

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
                    agent.connect(self._path)
                    self._greet()
                    self._converse(agent)
                failures = 0
            except OSError:
                failures = 0  # the agent is away, and comes back
            except Exception:  # noqa: BLE001  (told in the log, and a thread that ended would leave the rank alone)
                failures += 1
                _log.exception("what the agent told could not be followed; asking it again")
            time.sleep(_RECONNECT_S * (1 << min(failures, _MOST_DOUBLINGS)))

    def _greet(self) -> None:
        generation, step = self._place
        hello = {
            "type": str(ToAgent.HELLO),
            "process": self._process,
            "pid": os.getpid(),
            "generation": generation,
            "step": step,
            "protocol": PROTOCOL_VERSION,
        }
        with self._lock:
            self._outbox.clear()
            self._outbox.extend([hello, *self._standing.values(), *self._steps])

    def _converse(self, agent: socket.socket) -> None:
        agent.setblocking(False)
        unread, unsent = b"", b""
        pulse_at = time.monotonic()
        while True:
            is_taken = not unsent
            with self._lock:
                while self._outbox:
                    unsent += json.dumps(self._outbox.popleft()).encode() + b"\n"
            if time.monotonic() >= pulse_at:  # HELLO, which must be the first line, has been put before it
                unsent += self._beat() if is_taken else b""
                pulse_at = time.monotonic() + _PULSE_S
            unsent = unsent[_send(agent, unsent) :]
            (self._idle.clear if unsent else self._idle.set)()
            watched: list[socket.socket | int] = [agent, self._wake]
            readable, _, _ = select.select(watched, [agent] if unsent else [], [], max(0.0, pulse_at - time.monotonic()))
            if self._wake in readable:
                os.eventfd_read(self._wake)
            if agent in readable:
                received = agent.recv(_LONGEST_READ)
                if not received:
                    return
                *lines, unread = (unread + received).split(b"\n")
                for line in lines:
                    self._hear(line)

    def _beat(self) -> bytes:
        """A pulse. Not asked for while the agent does not even take what it was told before."""
        told = self.pulse()
        return json.dumps({"type": str(ToAgent.PULSE), **told}).encode() + b"\n" if told is not None else b""

    def _hear(self, line: bytes) -> None:
        try:
            told = _read(line)
        except (ValueError, TypeError, KeyError, AttributeError):
            # Not its text: that may hold a job's secrets.
            _log.exception("a message of %d bytes from the agent cannot be read and is left out", len(line))
            return
        try:
            self._follow(told)
        finally:
            with self._news:
                self._news.notify_all()

    def _follow(self, told: Generation | Evacuation | str | None) -> None:
        if told == ToProcess.DISMISS:
            self.is_dismissed = True
        elif isinstance(told, Evacuation):
            self._take_notice(told)
        elif isinstance(told, Generation) and told.number >= self.newest_number and told.number > self._fenced:
            self.newest = told
            self._on_newer(told.number)
            self._fenced = told.number

    def _take_notice(self, told: Evacuation) -> None:
        before, self.notice = self.notice, None if told.is_over else told
        is_news = before is None or self._owes_notice or _is_sooner(told.deadline, before.deadline)
        self._owes_notice = is_news and not told.is_over
        if self._owes_notice:
            self.on_notice()
            self._owes_notice = False


def _read(line: bytes) -> Generation | Evacuation | str | None:
    """What is told, or the kind of a message that has nothing besides. Raises ValueError, TypeError, KeyError, AttributeError."""
    message = json.loads(line)
    kind: str | None = message.get("type")
    match kind:
        case ToProcess.NOTICE:
            return Evacuation.from_wire(message["notice"])
        case ToProcess.GENERATION:
            return Generation.from_wire(message["generation"])
        case _:
            return kind


def _nobody() -> None:
    """Nothing of this process can be saved, or not yet."""


def _unwell() -> None:
    """Nothing is known of this process's health, or not yet."""


def _is_sooner(deadline: float | None, known: float | None) -> bool:
    """By more than clocks and roundings make of one and the same notice, which agent and control plane both tell."""
    return deadline is not None and (known is None or deadline < known - _SAME_NOTICE_S)


def _send(agent: socket.socket, unsent: bytes) -> int:
    if not unsent:
        return 0
    try:
        return agent.send(unsent)
    except BlockingIOError:
        return 0
