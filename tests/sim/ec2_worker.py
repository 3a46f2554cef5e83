"""A worker that may be killed at any moment: ``python -m tests.sim.ec2_worker DATABASE DOOR PLANE SETTLES_S``.

Each line that it reads is a piece of work and a time: ``work ISO``, ``sweep ISO``. For each it says the id of a process that does it with connections of
its own and, when that has ended, how. Starting over is a matter of milliseconds, so many deaths fit into a test.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from models.session import Sessions, connect
from models.session import sessions as session_factory
from tests.workers.providers.ec2_front import IMAGE, client
from tests.workers.small_plane import SmallPlane, TestClock
from workers import orphans
from workers.plane import Plane
from workers.providers.ec2 import Ec2Provider
from workers.providers.ec2_calls import Calls
from workers.providers.ec2_options import Ec2Options

ROOT = Path(__file__).parents[2]


class _Deaf:
    """Rows say themselves when they are due; nobody needs to be told."""

    def heard(self, **_: Any) -> list[str]:
        return []


@dataclass
class Worker:
    """As the test sees it. ``pid`` is the process at work, None if there is none, 0 if it is not to be killed."""

    process: subprocess.Popen[bytes]
    pid: int | None = None

    @classmethod
    def start(cls, *told: str, log: Path) -> Worker:
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.sim.ec2_worker", *told],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,  # so that what has been said is seen by `select`
            )
        return cls(process)

    def begin(self, kind: str, now: datetime) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind} {now.isoformat()}\n".encode())
        self.pid = int(self._line())

    def has_ended(self, *, within_s: float) -> bool:
        """Whether ``end`` would not wait."""
        return bool(select.select([self.process.stdout], [], [], within_s)[0])

    def end(self) -> int:
        """Waits for the process; its wait status."""
        status = int(self._line())
        self.pid = None
        return status

    def kill(self) -> None:
        """SIGKILL. It is not waited for before ``end`` has said so, so its id is nobody else's."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the worker has ended"
        return line


def provider(door: str, plane: str, settles_s: float) -> Ec2Provider:
    options = Ec2Options(plane=plane, images={"*": IMAGE}, settles_within=timedelta(seconds=settles_s))
    return Ec2Provider(Calls(client(door), rest_s=0.0), options, lambda spec: f"#!/bin/sh\n# {spec.claim}\n".encode())


def _work(kind: str, now: datetime, sessions: Sessions, here: Ec2Provider) -> None:
    plane = SmallPlane(sessions, _Deaf(), provider=here, clock=TestClock(now))  # type: ignore[arg-type]
    if kind == "sweep":
        orphans.release(Plane(plane.sessions, plane.clock, plane.driver, here))
    else:
        plane.work()


def _forked(kind: str, now: datetime, sessions: Sessions, here: Ec2Provider) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _work(kind, now, sessions, here)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def main(database: str, door: str, plane: str, settles_s: str) -> None:
    """The first piece is done here, so that its many successors find every statement compiled; then the connections are closed."""
    engine = connect(database, pool_size=2)
    sessions, here = session_factory(engine), provider(door, plane, float(settles_s))
    is_warm = False
    for line in sys.stdin:
        kind, now = line.split()
        if not is_warm:
            print(0, flush=True)
            _work(kind, datetime.fromisoformat(now), sessions, here)
            engine.dispose()
            client(door).close()
            is_warm = True
            print(0, flush=True)
            continue
        pid = _forked(kind, datetime.fromisoformat(now), sessions, here)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
