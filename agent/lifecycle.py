"""Runs the node's lifecycle scripts: fetched from the object store, once a start from an image, tried several times, within a time limit.

What they did is kept in ``lifecycle.json``: an agent that is restarted after they have ended tells the same again instead of running them
twice, and one that is restarted while a script runs ends it first, because two of them at once would break what either of them sets up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agent.processes import start_time
from everstep.protocol import LifecycleReport, LifecycleStarted

log = logging.getLogger(__name__)

_TIMED_OUT = 124
_CANNOT_START = 126
_NOT_FOUND = 127
_SIGNALLED = 128
_TAIL_BYTES = 4096


class CannotFetch(Exception):
    """The script is not where it should be; the message says where that is."""


@dataclass(frozen=True)
class Course:
    """``uri`` is a prefix in the object store; everything under it is fetched. ``names`` are the files in it that are run, one after the other.

    Each is tried up to ``tries`` times, ``pause_s`` apart at first and ever farther; all of it together may take ``limit_s``.
    """

    uri: str
    names: tuple[str, ...]
    tries: int = 1
    pause_s: float = 5.0
    limit_s: float = 3600.0


@dataclass(frozen=True)
class _Kept:
    """What ``lifecycle.json`` holds: the script that is at work and its try, its process while it runs, and the last word once there is one."""

    name: str | None = None
    attempt: int = 1
    pid: int | None = None
    start_time: int | None = None
    report: dict[str, object] | None = None


Tell = Callable[[LifecycleStarted | LifecycleReport], None]


@dataclass(frozen=True)
class Lifecycle:
    """``environment`` is what the scripts see besides the node's facts; ``clock`` is monotonic, in seconds."""

    state_dir: Path
    object_store_url: str | None
    environment: Mapping[str, str]
    clock: Callable[[], float]

    async def run(self, course: Course, tell: Tell) -> LifecycleReport:
        """Returns the last word; ``tell`` hears of every try that begins, and of every one that failed and is not the last.

        Never raises: whatever goes wrong is the script's failure, with the reason in ``tail``.
        """
        kept = self._kept()
        if kept.report is not None:
            return LifecycleReport.from_wire(kept.report)
        _end_leftover(kept)
        began = self.clock()
        first = course.names.index(kept.name) if kept.name in course.names else 0
        report = LifecycleReport(exit_code=0, seconds=0.0)
        for name in course.names[first:]:
            attempt = kept.attempt if name == kept.name else 1
            report = await self._until_done(course, name, attempt, began + course.limit_s, tell)
            if report.exit_code != 0:
                break
        if report.exit_code == 0:
            report = replace(report, seconds=round(self.clock() - began, 3))
        self._keep(_Kept(report=report.to_wire()))
        return report

    async def _until_done(self, course: Course, name: str, attempt: int, until: float, tell: Tell) -> LifecycleReport:
        """Tries one script until it succeeds, its tries are used up or the time is over. The next try has everything fetched anew."""
        pause_s = course.pause_s * 2 ** (attempt - 1)
        while True:
            self._keep(_Kept(name, attempt))
            report = await self._try(course, name, attempt, until, tell)
            if report.exit_code == 0 or attempt >= course.tries or self.clock() + pause_s >= until:
                return report
            tell(replace(report, is_final=False))
            await asyncio.sleep(pause_s)
            attempt += 1
            pause_s *= 2

    async def _try(self, course: Course, name: str, attempt: int, until: float, tell: Tell) -> LifecycleReport:
        began = self.clock()
        try:
            folder = await asyncio.to_thread(self._fetch, course.uri, name)
            tell(LifecycleStarted(name, attempt))
            code, tail = await self._execute(folder, name, attempt, max(0.0, until - self.clock()), course.limit_s)
        except CannotFetch as error:
            code, tail = _NOT_FOUND, str(error)
        except OSError as error:
            code, tail = _CANNOT_START, f"the lifecycle script cannot be started: {error}"
        seconds = round(self.clock() - began, 3)
        return LifecycleReport(exit_code=code, seconds=seconds, tail=tail, script=name, attempt=attempt)

    @property
    def log(self) -> Path:
        return self.state_dir / "lifecycle.log"

    def _fetch(self, uri: str, name: str) -> Path:
        """Raises CannotFetch."""
        source = stored_at(uri, self.object_store_url)
        if not source.is_dir():
            message = f"there is nothing at {uri}"
            raise CannotFetch(message)
        entry = (source / name).resolve()
        if not entry.is_relative_to(source.resolve()) or not entry.is_file():
            message = f"there is no file {name!r} at {uri}"
            raise CannotFetch(message)
        folder = self.state_dir / "lifecycle"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        (folder / name).chmod(0o755)
        return folder

    async def _execute(self, folder: Path, name: str, attempt: int, rest_s: float, limit_s: float) -> tuple[int, str]:
        path = folder / name
        with path.open("rb") as file:
            has_interpreter = file.read(2) == b"#!"
        command = [str(path)] if has_interpreter else ["/bin/sh", str(path)]
        with self.log.open("wb") as output:
            child = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env=dict(self.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._keep(_Kept(name, attempt, child.pid, start_time(child.pid)))
        try:
            async with asyncio.timeout(rest_s):
                code = await child.wait()
        except TimeoutError:
            _kill_group(child.pid)
            await child.wait()
            return _TIMED_OUT, f"{self._tail()}\nended after its time limit of {limit_s:g} s".lstrip()
        except asyncio.CancelledError:
            _kill_group(child.pid)
            raise
        return (code if code >= 0 else _SIGNALLED - code), self._tail()

    def _tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")

    def _kept(self) -> _Kept:
        try:
            return _Kept(**json.loads((self.state_dir / "lifecycle.json").read_text()))
        except (OSError, ValueError, TypeError):
            return _Kept()

    def _keep(self, kept: _Kept) -> None:
        """As well as can be: a full disk must not keep the result from being told, or a script that runs from being watched."""
        draft = self.state_dir / ".lifecycle.json"
        try:
            draft.write_text(json.dumps(asdict(kept)))
            draft.replace(self.state_dir / "lifecycle.json")
        except OSError as error:
            log.warning("what the lifecycle script did cannot be noted: %s", error)


def stored_at(uri: str, object_store_url: str | None) -> Path:
    """Where ``s3://bucket/key`` lies in a store of files: at ``<root>/bucket/key``.

    Raises:
        CannotFetch: the store is not one of files, or the address is not one of an object.
    """
    try:
        store, wanted = urlsplit(object_store_url or ""), urlsplit(uri)
    except ValueError as error:
        message = f"{uri!r} is no s3://bucket/prefix: {error}"
        raise CannotFetch(message) from error
    if store.scheme != "file":
        message = f"the agent can read lifecycle scripts from a file:// object store only; EVERSTEP_OBJECT_STORE_URL is {object_store_url!r}"
        raise CannotFetch(message)
    if wanted.scheme != "s3" or not wanted.netloc:
        message = f"{uri!r} is no s3://bucket/prefix"
        raise CannotFetch(message)
    root = Path(unquote(store.path)).resolve()
    place = (root / wanted.netloc / wanted.path.lstrip("/")).resolve()
    if not place.is_relative_to(root / wanted.netloc):
        message = f"{uri!r} leads out of its bucket"
        raise CannotFetch(message)
    return place


def _end_leftover(kept: _Kept) -> None:
    if kept.pid is not None and start_time(kept.pid) == kept.start_time:
        _kill_group(kept.pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
