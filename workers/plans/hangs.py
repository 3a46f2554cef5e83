"""Which processes hang, from what all of them say of themselves. Pure.

Whoever waits in a collective is healthy: it is the one that computes meanwhile, or says nothing at all, that hangs. Three things follow. A rank that
computes for long is given up only while another one waits for it, because all of them may be busy with something long, an evaluation say. One of which
nothing is heard is given up when all others have waited for very long: its agent may have begun anew while it was frozen. When all wait for each other, nobody is given up: their collectives do not match, and the same members try once more. And a step at which one process after the other
hangs is the script's own fault: each time more patience is shown, and then the job has failed, with the stack of the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from models.ids import ProcessId
from models.job.states import ProcessState
from workers.plans.job_seen import GenerationSeen, HangSeen, JobSeen, ProcessSeen

COMPUTING, WAITING, FROZEN = "computing", "waiting", "frozen"
MISMATCH_CAUSE = "Every rank waits for the others in a collective"
"""With these words begins the cause of a generation that is to show whether ranks always wait for each other at this step."""
_MOST_AT_A_STEP = 3
_AGAIN = 5
"""A process speaks again after each quarter of its limit: within a fifth of it, what it said before is not held against it."""
_UNWITNESSED = 30
"""Nobody waits for it, or nobody says so: so many times the limit. As long must all others have waited for one that says nothing."""


@dataclass(frozen=True)
class Hanging:
    """``doomed`` are to be given up, each with the reason; ``mismatch`` says that all wait for each other; ``failure`` that the job has failed."""

    doomed: dict[ProcessId, str] = field(default_factory=dict)
    mismatch: str | None = None
    failure: str | None = None


def hanging(seen: JobSeen) -> Hanging:
    """What follows from what has been told of processes that make no progress."""
    generation = seen.generation
    frozen = {one.id: _told(seen, one, one.hang) for one in seen.alive if one.hang is not None and one.hang.how == FROZEN}
    if generation is None:
        return Hanging(frozen)
    members = [(rank, seen.by_id[process]) for rank, process in enumerate(generation.members)]
    stuck = [(process, hang) for _, process in members if (hang := _current(generation, process)) is not None]
    doomed = {process.id: _told(seen, process, hang) for process, hang in stuck if _is_to_blame(seen, process, hang, stuck)}
    doomed |= {process: why for process, why in frozen.items() if process not in doomed}
    doomed |= _silent(members, {process.id: hang for process, hang in stuck})
    if doomed and (failure := _always_here(seen, doomed)):
        return Hanging(failure=failure)
    waiting = [(process, hang) for process, hang in stuck if hang.how == WAITING]
    if doomed or len(waiting) < len(members):
        return Hanging(doomed)
    return _all_wait(seen, generation, waiting)


def _current(generation: GenerationSeen, process: ProcessSeen) -> HangSeen | None:
    """What was told of this generation, unless it has gone on since: a step more may have been committed without this rank, two may not.

    The generation's own progress counts: it may do steps again that the job has been at before.
    """
    hang = process.hang
    reached = generation.reached or 0
    is_so = hang is not None and process.is_alive and hang.generation == generation.number and hang.step + 1 >= reached
    return hang if is_so else None


def _is_to_blame(seen: JobSeen, process: ProcessSeen, hang: HangSeen, stuck: list[tuple[ProcessSeen, HangSeen]]) -> bool:
    if hang.how == WAITING:
        return False
    if hang.how == FROZEN:
        return True
    patience = 2 ** len(_gave_up_at(seen, hang.step))
    waits = any(_is_witness(other, hang) for one, other in stuck if one is not process)
    return hang.seconds > hang.limit_s * (patience if waits else _UNWITNESSED)


def _is_witness(other: HangSeen, hang: HangSeen) -> bool:
    """Whether this rank waits for the one that is said to hang, and did so well before that one spoke last.

    All may be slow in one step, and then the first that is done with it waits for some that are healthy.
    """
    if other.how != WAITING or not 0 <= other.step - hang.step <= 1:
        return False
    return other.since is None or hang.at is None or hang.at - other.since >= timedelta(seconds=hang.limit_s / _AGAIN)


def _silent(members: list[tuple[int, ProcessSeen]], stuck: dict[ProcessId, HangSeen]) -> dict[ProcessId, str]:
    """Who says nothing of a step in which everybody who speaks has waited for very long."""
    waited = [hang for hang in stuck.values() if hang.how == WAITING and hang.seconds > hang.limit_s * _UNWITNESSED]
    silent = [process for _, process in members if process.id not in stuck and process.is_alive]
    if not waited or len(waited) + len(silent) < len(members):
        return {}
    seconds = min(hang.seconds for hang in waited)
    return {process.id: f"it hangs: all others have waited for {seconds:.0f} s, and it says nothing" for process in silent}


def _gave_up_at(seen: JobSeen, step: int) -> list[ProcessSeen]:
    """Processes that have been given up because they hung at this step, by whichever member of it."""
    return [
        one
        for one in seen.processes
        if one.state is ProcessState.LOST and one.hang is not None and _blamed(one) and one.hang.step == step
    ]


def _blamed(process: ProcessSeen) -> bool:
    """A frozen process is stopped from outside, or its node is sick; what computes for ever does what the script says."""
    return process.hang is not None and process.hang.how == COMPUTING


def _always_here(seen: JobSeen, doomed: dict[ProcessId, str]) -> str | None:
    for process in doomed:
        hang = seen.by_id[process].hang
        if hang is None or hang.how != COMPUTING:
            continue
        before = _gave_up_at(seen, hang.step)
        if len(before) + 1 >= _MOST_AT_A_STEP:
            return (
                f"{len(before) + 1} processes, one after the other, have hung at step {hang.step}. The last of them:\n{hang.stack}"
            )
    return None


def _all_wait(seen: JobSeen, generation: GenerationSeen, waiting: list[tuple[ProcessSeen, HangSeen]]) -> Hanging:
    step = max(hang.step for _, hang in waiting)
    words = f"{MISMATCH_CAUSE} at step {step}: they have not called the same ones"
    tried = [one for one in seen.generations if one.cause.startswith(MISMATCH_CAUSE) and f"at step {step}:" in one.cause]
    if not tried:
        return Hanging(mismatch=f"{words}. The same members once more.")
    stacks = "\n".join(f"rank {generation.members.index(process.id)}:\n{hang.stack}" for process, hang in waiting)
    return Hanging(failure=f"{words}, and did so again when they tried once more.\n{stacks}")


def _told(seen: JobSeen, process: ProcessSeen, hang: HangSeen | None) -> str:
    if hang is None:
        return "it hangs"
    how = "it does not answer any more" if hang.how == FROZEN else "it computes while the others wait for it"
    where = f" at step {hang.step}" if hang.generation and seen.generation and process.id in seen.generation.members else ""
    return f"it hangs{where}: no progress for {hang.seconds:.0f} s, and {how}{_innermost(hang.stack)}"


def _innermost(stack: str) -> str:
    """The line where it is, of the first thread of a stack."""
    first = stack.split("\nThread ", 1)[0]
    lines = [line.strip() for line in first.splitlines() if line.strip().startswith("File ")]
    return f" ({lines[-1][:200]})" if lines else ""
