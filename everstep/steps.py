"""What a script of its own can tell of its progress. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import Any, SupportsFloat

from everstep.local_protocol import ToAgent
from everstep.protocol import PROTOCOL_VERSION

_PATIENCE_S = 0.2


def report_step(step: int, loss: SupportsFloat | None = None) -> None:
    """Tells that optimizer step number ``step`` (from 0) is done, for scripts under ``recovery: process``, after each step and on any rank.

    Only rank 0's word is passed on. Outside of a job it does nothing, and it never raises: an agent that restarts is told the next step.
    The seconds of a step are those since the report before.
    """
    seen = os.environ  # noqa: TID251, the process is the script's own, and torchrun's variables are its place
    if seen.get("EVERSTEP_SOCKET") and seen.get("RANK", "0") == "0":
        _TELLER.tell(seen["EVERSTEP_SOCKET"], seen["EVERSTEP_PROCESS_ID"], int(seen.get("EVERSTEP_GENERATION", "0")), step, loss)


class _Teller:
    """One connection to the agent, made when it is first needed and again when it is gone. What the agent says is not listened to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agent: socket.socket | None = None
        self._told_at: float | None = None

    def tell(self, path: str, process: str, generation: int, step: int, loss: SupportsFloat | None) -> None:
        with self._lock:
            now = time.time()
            seconds = 0.0 if self._told_at is None else now - self._told_at
            self._told_at = now
            told = {"type": str(ToAgent.PROGRESS), "generation": generation, "step": step, "seconds": seconds, "at": now}
            told |= {} if loss is None else {"loss": float(loss)}
            hello = {"type": str(ToAgent.HELLO), "process": process, "pid": os.getpid(), "generation": generation, "step": step}
            for _ in range(2):
                if self._send(path, {**hello, "protocol": PROTOCOL_VERSION}, told):
                    return

    def _send(self, path: str, hello: dict[str, Any], told: dict[str, Any]) -> bool:
        try:
            if self._agent is None:
                self._agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._agent.settimeout(_PATIENCE_S)
                self._agent.connect(path)
                self._agent.sendall(json.dumps(hello).encode() + b"\n")
            self._agent.sendall(json.dumps(told).encode() + b"\n")
        except OSError:
            with contextlib.suppress(OSError):
                if self._agent is not None:
                    self._agent.close()
            self._agent = None
            return False
        return True


_TELLER = _Teller()
