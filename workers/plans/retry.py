"""User code that raised in processes that stay: the same members try once more, in a new generation, so often as a job may restart. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from workers.plans.evidence import faults, told_fault
from workers.plans.job_seen import GenerationSeen, JobSeen, ProcessSeen

WHY = "User code raised in processes that live on: the same members try once more."


@dataclass(frozen=True)
class Due:
    """When the next try is to begin, and when the newest error was told."""

    at: datetime
    since: datetime


def count(seen: JobSeen) -> int:
    """How often user code has failed: generations that it ended, and processes that it brought down before they were in any.

    However many ranks raise at once, or are brought down by one batch that is too large, it is once.
    """
    ended = {number for process in seen.processes if process.raised for number in process.raised.generations}
    brought_down = faults(seen)
    ended |= {process.reformed for process in brought_down if process.reformed}
    return len(ended) + sum(not process.reformed for process in brought_down)


def words(seen: JobSeen) -> str | None:
    """What user code said when it failed last: of the ranks of one generation the first one, which the others' errors may follow from. None: it has not failed."""
    told = [(one.raised.generations[-1], one.raised.at[-1], one.raised.words) for one in seen.processes if one.raised]
    told += [(one.reformed, one.state_since, told_fault(one)) for one in faults(seen)]
    newest = max((generation for generation, _, _ in told), default=0)
    last = [(at, text) for generation, at, text in told if generation == newest]
    return min(last, key=lambda one: one[0])[1] if last else None


def due(seen: JobSeen, generation: GenerationSeen, alive: Sequence[ProcessSeen]) -> Due | None:
    """None if nobody has raised in this generation. The first try is at once, the pause before each further one twice as long."""
    raised = [process.raised.at[-1] for process in alive if process.raised and process.raised.generations[-1] == generation.number]
    if not raised:
        return None
    tries = count(seen)
    pause = min(seen.patience.longest, seen.patience.broken * 2 ** min(tries - 2, 10)) if tries > 1 else seen.patience.broken * 0
    return Due(min(raised) + pause, min(raised))
