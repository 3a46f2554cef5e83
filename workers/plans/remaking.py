"""Generations that are made again with the same members: after an error without a death, or when they do not form in time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from models.job.states import JobState
from workers.plans import elastic, retry
from workers.plans.decision import Decision
from workers.plans.hangs import hanging
from workers.plans.job_seen import Action, GenerationSeen, GiveUp, JobSeen, Move, ProcessSeen, Publish

_POLL = timedelta(seconds=5)


def broken(seen: JobSeen, generation: GenerationSeen, alive: Sequence[ProcessSeen], now: datetime) -> Decision[Action] | None:
    """A collective failed, or fits no other rank's, and yet everybody lives: the same members once more, when it is clear that nobody has died."""
    if mismatch := hanging(seen).mismatch:
        return Decision(_again(seen, generation, mismatch, None))
    if raised := retry.due(seen, generation, alive):
        rest = raised.at - now
        return Decision((), rest) if rest > timedelta(0) else Decision(_again(seen, generation, retry.WHY, raised.since))
    complaints = [process.broken_at for process in alive if process.broken >= generation.number and process.broken_at]
    if not complaints:
        return None
    pause = min(seen.patience.longest, seen.patience.broken * 2 ** min(repeats(seen, generation, now) - 1, 10))
    rest = min(complaints) + pause - now
    if rest > timedelta(0):
        return Decision((), rest)
    return Decision(
        _again(seen, generation, "A collective failed, though nobody has died: the same members once more.", min(complaints))
    )


def overdue(seen: JobSeen, generation: GenerationSeen, alive: Sequence[ProcessSeen], now: datetime) -> Decision[Action]:
    """A generation that does not form is published once more; then those that do not join are given up, unless nobody does.

    Whoever has not been told of it cannot join: nobody's patience runs out before that. Whether his node is lost is concluded elsewhere.
    A change of size is followed when the script comes to it: those that hold the state are given the job's graceful time for that.
    """
    count = repeats(seen, generation, now)
    late = [process for process in alive if process.reformed < generation.number]
    told = [told for told in seen.told if told.node in {process.node for process in late}]
    if not all(one.is_delivered for one in told):
        return Decision((), _POLL)
    since = max([generation.decided_at, *(one.delivered_at for one in told if one.delivered_at)])
    rest = since + min(seen.patience.longest, seen.patience.reform * 2 ** min(count - 1, 10)) - now
    if rest > timedelta(0):
        return Decision((), rest)
    is_due = elastic.has_been_graceful(seen, generation, now)
    due = [process for process in late if is_due or not process.reformed]
    if count > 1 and due and len(late) < len(alive):
        return Decision(
            tuple(GiveUp(process.id, f"it did not join generation {generation.number}") for process in due), timedelta(0)
        )
    return Decision(_again(seen, generation, f"{len(late)} members have not joined in time: the same members once more.", None))


def recovering(seen: JobSeen, why: str) -> tuple[Move, ...]:
    return (Move(JobState.RECOVERING, why),) if seen.state in (JobState.TRAINING, JobState.RESIZING) else ()


def repeats(seen: JobSeen, generation: GenerationSeen, now: datetime) -> int:
    """How many of the newest generations had the same members and came to nothing, this one included."""
    count = 0
    for one in reversed(seen.generations):
        if one.members != generation.members or now - one.decided_at > seen.patience.longest * 4:
            break
        count += 1
    return max(1, count)


def _again(seen: JobSeen, generation: GenerationSeen, why: str, since: datetime | None) -> tuple[Action, ...]:
    return (*recovering(seen, why), Publish(generation.members, why, since))
