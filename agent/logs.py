"""Tells what the node's processes write, a little at a time: whole lines, at most so much a second, the rest counted and left out.

How far each log has been told is kept on disk, so that a restarted agent goes on where the one before stopped.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agent.processes import Record, read_records
from everstep.protocol import LogReport

log = logging.getLogger(__name__)

EVERY_S = 1.0
MOST_BYTES = 16_384
"""Of one process, each time. A log that grows faster is told from its end."""


class Logs:
    """Follows the logs of the processes that have a record under ``state_dir``."""

    def __init__(self, state_dir: Path, report: Callable[[LogReport], None]) -> None:
        self._records = state_dir / "processes"
        self._kept = state_dir / "logs.json"
        self._report = report
        self._told: dict[str, int] = _load(self._kept)
        self._followed: dict[str, Record] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Tells what is new in every log. Of a process that has been forgotten since the last look its last words are still told."""
        records = read_records(self._records)
        before = dict(self._told)
        for process in self._followed.keys() - {record.process for record in records}:
            self._follow(replace(self._followed[process], has_exited=True))
        self._followed = {record.process: record for record in records}
        self._told = {record.process: self._follow(record) for record in records}
        if self._told != before:
            self._keep()

    def _keep(self) -> None:
        """As well as can be: on a full disk, logs are what people need most."""
        draft = self._kept.with_name(f".{self._kept.name}")
        try:
            draft.write_text(json.dumps(self._told))
            draft.replace(self._kept)
        except OSError as error:
            log.warning("how far logs have been told cannot be kept: %s", error)

    def _follow(self, record: Record) -> int:
        """Returns the offset up to which this log has now been told."""
        told = self._told.get(record.process, 0)
        try:
            with Path(record.log).open("rb") as written:
                size = written.seek(0, 2)
                begin = max(told, size - MOST_BYTES)
                written.seek(begin)
                fresh = written.read(MOST_BYTES)
        except OSError:
            return told
        whole = fresh if record.has_exited else fresh[: fresh.rfind(b"\n") + 1] or (fresh if len(fresh) == MOST_BYTES else b"")
        if whole:
            self._report(LogReport(record.job, record.process, whole.decode(errors="replace"), skipped=begin - told))
        return begin + len(whole) if whole else told


def _load(path: Path) -> dict[str, int]:
    try:
        return {str(process): int(offset) for process, offset in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
