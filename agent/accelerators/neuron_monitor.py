"""``neuron-monitor`` as a child: a JSON document a line. One that dies, falls silent or talks nonsense is started anew, later each time."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)

PERIOD_S = 5.0
"""How often it speaks unless it is told otherwise."""
_SILENT_AFTER_PERIODS = 4.0
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
_END_S = 2.0
_CHUNK_BYTES = 65_536
_MOST_LINE_BYTES = 16 * 2**20


class NeuronMonitor:
    """``monotonic`` in seconds. Not for several threads at once."""

    def __init__(
        self, program: str, environment: Mapping[str, str], *, monotonic: Callable[[], float], period_s: float = PERIOD_S
    ) -> None:
        self._program = program
        self._environment = environment
        self._monotonic = monotonic
        self._silent_after_s = period_s * _SILENT_AFTER_PERIODS
        self._child: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._failures = 0
        self._not_before = 0.0
        self._heard_at = 0.0
        self._said: dict[str, Any] | None = None
        self.trouble = "neuron-monitor has said nothing yet"
        """Why there is nothing of it to go by; "" while there is."""

    def said(self) -> dict[str, Any] | None:
        """Its newest document; None while it cannot be relied on. Starts it if it does not run, and does not wait."""
        if self._child is None:
            if self._monotonic() >= self._not_before:
                self._start()
            return None
        self._take(self._child)
        return self._said

    def wait(self, limit_s: float) -> None:
        """Until it has said something, or has ended. Blocks."""
        if self.said() is None and self._child is not None and self._child.stdout is not None:
            select.select([self._child.stdout], [], [], limit_s)
            self.said()

    def close(self) -> None:
        self._end()

    def _start(self) -> None:
        try:
            child = subprocess.Popen(
                [self._program],
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            self._fail(f"neuron-monitor cannot be started: {error.strerror or error}")
            return
        if child.stdout is not None:
            os.set_blocking(child.stdout.fileno(), False)
        self._child, self._buffer, self._heard_at = child, b"", self._monotonic()

    def _take(self, child: subprocess.Popen[bytes]) -> None:
        """What has been said since the last time."""
        ended = child.poll()
        for line in self._lines(child):
            if not self._hear(line):
                return
        if ended is not None:
            self._fail(f"neuron-monitor has ended with {ended}")
        elif self._monotonic() - self._heard_at > self._silent_after_s:
            self._fail(f"neuron-monitor has said nothing for {self._silent_after_s:g} s")

    def _lines(self, child: subprocess.Popen[bytes]) -> list[bytes]:
        if child.stdout is not None:
            with suppress(BlockingIOError):
                while chunk := os.read(child.stdout.fileno(), _CHUNK_BYTES):
                    self._buffer += chunk
                    if len(self._buffer) > _MOST_LINE_BYTES:
                        break
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > _MOST_LINE_BYTES:
            lines.append(b"a line without an end")
        return [line for line in lines if line.strip()]

    def _hear(self, line: bytes) -> bool:
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            self._fail(f"neuron-monitor speaks no JSON: {line[:80]!r}")
            return False
        self._said, self.trouble = said, ""
        self._failures, self._heard_at = 0, self._monotonic()
        return True

    def _fail(self, why: str) -> None:
        pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
        log.warning("%s; starting it again in %g s", why, pause_s)
        self._failures += 1
        self._not_before = self._monotonic() + pause_s
        self._said, self.trouble = None, why
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
