"""The door for training processes: a Unix socket on which they say how they fare and hear of newer generations.

A process connects again for ever, so a restarted agent hears HELLO from everybody, and whatever still stands after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Protocol

from everstep.evidence import AnomalyReport, StragglerReport
from everstep.local_protocol import ToAgent, ToProcess
from everstep.notices import Evacuation
from everstep.protocol import (
    BrokenReport,
    FailedReport,
    FinishedReport,
    Generation,
    ReformedReport,
    Report,
    Source,
)
from everstep.tiers import SavedReport

_LONGEST_PATH = 100
_LONGEST_LINE = 1 << 22


class Listener(Protocol):
    """Who hears what the processes say."""

    def knows(self, process: str) -> bool: ...

    def connected(self, process: str) -> None: ...

    def heard(self, process: str, kind: ToAgent, message: dict[str, Any]) -> None: ...


class Door:
    """Serves ``path``. One connection a process; a newer one of the same process takes over."""

    def __init__(self, state_dir: Path, listener: Listener) -> None:
        self.path = socket_path(state_dir, "ranks")
        self._listener = listener
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=_LONGEST_LINE)
        self.path.chmod(0o600)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for conversation in list(self._conversations):
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    def is_connected(self, process: str) -> bool:
        return process in self._writers

    def tell_generation(self, process: str, generation: Generation) -> None:
        self._say(process, {"type": str(ToProcess.GENERATION), "generation": generation.to_wire()})

    def tell_notice(self, process: str, told: Evacuation) -> None:
        self._say(process, {"type": str(ToProcess.NOTICE), "notice": told.to_wire()})

    def dismiss(self, process: str) -> None:
        self._say(process, {"type": str(ToProcess.DISMISS)})

    def _say(self, process: str, message: dict[str, Any]) -> None:
        """Never waits: what a process does not take, its socket's buffer holds, and its next HELLO repairs."""
        writer = self._writers.get(process)
        if writer is not None and not writer.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._conversations.add(task)
            task.add_done_callback(self._conversations.discard)
        process = ""
        with contextlib.suppress(ConnectionError, ValueError, KeyError, asyncio.CancelledError):
            hello = json.loads(await reader.readline())
            process = str(hello["process"])
            if hello.get("type") == ToAgent.HELLO and self._listener.knows(process):
                self._writers[process] = writer
                self._listener.heard(process, ToAgent.HELLO, hello)
                self._listener.connected(process)
                await self._listen(process, reader)
        if self._writers.get(process) is writer:
            del self._writers[process]
        writer.close()

    async def _listen(self, process: str, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            self._listener.heard(process, ToAgent(message["type"]), message)


def socket_path(state_dir: Path, name: str = "ranks") -> Path:
    """Inside the state directory; if that makes the name too long for a socket, in a private folder, by a name that a restart finds."""
    path = state_dir.absolute() / f"{name}.sock"
    if len(str(path)) <= _LONGEST_PATH:
        return path
    short = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"everstep-{os.getuid()}" / f"{short}.sock"


def rank_report(job: str, process: str, kind: ToAgent, message: dict[str, Any]) -> Report:
    """What a rank says of its generation, its pace, its losses and its saves, as the control plane is told it."""
    match kind:
        case ToAgent.BROKEN:
            return BrokenReport(job, message["generation"], process, message["message"], message["at"])
        case ToAgent.REFORMED:
            return ReformedReport(
                job,
                message["generation"],
                process,
                message["rank"],
                message["step"],
                Source(message["source"]),
                message["bytes_moved"],
                message["phases"],
                message.get("copies"),
                message.get("worst_loss"),
            )
        case ToAgent.FINISHED:
            return FinishedReport(job, process, message["generation"], message["step"], message.get("digest"))
        case ToAgent.STRAGGLER:
            return StragglerReport.from_wire({**message, "job": job, "process": process})
        case ToAgent.ANOMALY:
            return AnomalyReport.from_wire({**message, "job": job, "process": process})
        case ToAgent.SAVED:
            return SavedReport.from_wire({**message, "job": job})
        case _:
            return FailedReport(job, process, message["generation"], message["traceback"], message.get("stays", False))
