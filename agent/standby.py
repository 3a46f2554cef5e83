"""Holds a node of a spare pool ready: the zygotes of the jobs that it may be needed for stand while nothing runs here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable

from everstep.protocol import Assignment, Process
from everstep.standby import Expected
from everstep.standby import Standby as Order

from .zygotes import Zygotes


class Standby:
    """``warm`` returns when the zygote of an assignment stands; ``is_wanted`` says whether a job has or should have something here, ``is_idle`` that none has."""

    def __init__(
        self,
        zygotes: Zygotes,
        warm: Callable[[Assignment], Awaitable[None]],
        run: Callable[[Awaitable[None]], object],
        *,
        is_wanted: Callable[[str], bool],
        is_idle: Callable[[], bool],
    ) -> None:
        self._zygotes = zygotes
        self._warm = warm
        self._run = run
        self._is_wanted = is_wanted
        self._is_idle = is_idle
        self._expected: dict[str, Expected] = {}
        self._warmed: set[str] = set()

    def hear(self, told: Order) -> None:
        self._expected = {_name(one): one for one in told.expected}
        self.look()

    def look(self) -> None:
        """Lets go of zygotes that nobody needs. A node that has become idle warms up."""
        self._warmed &= self._expected.keys()
        if self._is_idle():
            for name in self._expected.keys() - self._warmed:
                self._warmed.add(name)
                self._run(self._warm(_assignment(name, self._expected[name])))
        self._zygotes.release(lambda job: job in self._warmed or self._is_wanted(job))


def _name(expected: Expected) -> str:
    """Under which its zygote is kept: not a job's, which may end while others need the same."""
    told = json.dumps(expected.to_wire(), sort_keys=True).encode()
    return f"standby-{hashlib.sha256(told).hexdigest()[:16]}"


def _assignment(name: str, expected: Expected) -> Assignment:
    return Assignment(name, expected.launch, (Process(name),) if expected.is_alone else ())
