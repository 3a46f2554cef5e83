"""``neuron-monitor`` as a child: a JSON document a line. One that dies, falls silent or talks nonsense is started anew, later each time."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import time
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
        self._is_at_end = False
        self._was_cut_short = False
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
        """Until it has said something whole, or has ended. Blocks, for ``limit_s`` at most.

        Half a line is no word yet, and nothing against the devices either: one that ends within it is started again, once.
        """
        deadline = time.monotonic() + limit_s
        has_another_try = True
        while self.said() is None and (rest_s := deadline - time.monotonic()) > 0:
            if self._child is not None and self._child.stdout is not None:
                select.select([self._child.stdout], [], [], rest_s)
            elif self._was_cut_short and has_another_try:
                has_another_try, self._not_before = False, self._monotonic()
            else:
                return

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
        self._child, self._buffer, self._is_at_end, self._heard_at = child, b"", False, self._monotonic()

    def _take(self, child: subprocess.Popen[bytes]) -> None:
        """What has been said since the last time."""
        for line in self._lines(child):
            if not self._hear(line):
                return
        if self._is_at_end:
            within = " within a line" if self._was_cut_short else ""
            self._fail(f"neuron-monitor has ended with {_code(child)}{within}")
        elif self._monotonic() - self._heard_at > self._silent_after_s:
            self._fail(f"neuron-monitor has said nothing for {self._silent_after_s:g} s")

    def _lines(self, child: subprocess.Popen[bytes]) -> list[bytes]:
        """The whole ones. What lacks its end is kept until that comes; after the end of all it counts for nothing."""
        if child.stdout is not None:
            with suppress(BlockingIOError):
                while len(self._buffer) <= _MOST_LINE_BYTES and not self._is_at_end:
                    chunk = os.read(child.stdout.fileno(), _CHUNK_BYTES)
                    self._buffer += chunk
                    self._is_at_end = not chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        self._was_cut_short = self._is_at_end and bool(self._buffer.strip())
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


def _code(child: subprocess.Popen[bytes]) -> int | str:
    """Of one that has closed its output, and so is about to end if it has not."""
    try:
        return child.wait(_END_S)
    except subprocess.TimeoutExpired:
        return "no word more"
