"""Steps that the ranks of this node have committed, gathered for a moment, so that a fast loop is told in few reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from everstep.protocol import ProgressReport, Report, StepReport

_EVERY_S = 0.2
_MOST_STEPS_A_REPORT = 200


class Progress:
    """One event loop's. ``report`` must not block."""

    def __init__(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._steps: dict[tuple[str, int], list[StepReport]] = {}

    def add(self, job: str, generation: int, step: StepReport) -> None:
        self._steps.setdefault((job, generation), []).append(step)

    async def run(self) -> None:
        """Tells what has gathered, for ever."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self.tell()

    def tell(self) -> None:
        """At once: what follows, an exit for one, must not be heard first."""
        waiting, self._steps = self._steps, {}
        for (job, generation), steps in waiting.items():
            for first in range(0, len(steps), _MOST_STEPS_A_REPORT):
                self._report(ProgressReport(job, generation, tuple(steps[first : first + _MOST_STEPS_A_REPORT])))
