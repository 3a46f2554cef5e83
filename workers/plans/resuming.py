"""Jobs that go on from a checkpoint because nobody holds their state any more: what is said of it, and when it is in vain. Pure."""

from __future__ import annotations

import re
from itertools import pairwise

from workers.plans.evidence import faults, told_fault
from workers.plans.job_seen import CheckpointSeen, GenerationSeen, JobSeen

_IDENTICAL = 3
"""So many restarts from a checkpoint, one after the other, that fail with the same words: the next one would, too."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def told(seen: JobSeen, found: CheckpointSeen) -> str:
    """From which step and tier the job goes on, and what that costs."""
    again = max(0, seen.step - found.step)
    places = [f"in the memory of {found.nodes} node{'s' * (found.nodes != 1)}"] if found.nodes else []
    places += [f"durable since {found.durable_at:%Y-%m-%d %H:%M:%S} UTC"] if found.durable_at else []
    cost = f"{again} step{'s are' if again != 1 else ' is'} done again" if again else "no step is done again"
    return f"All holders of the state are gone: goes on from step {found.step}, {' and '.join(places)}; {cost}."


def diagnosis(seen: JobSeen) -> str | None:
    """Why going on from a checkpoint once more would be in vain; None as long as it may not be.

    What is saved may be whole and yet poisoned, by a NaN for one: then every restart ends alike, and none but a person can tell which older
    step was good.
    """
    restarts = _restarts(seen)
    words = [_fault(seen, generation) for generation in restarts[-_IDENTICAL:]]
    if len(words) < _IDENTICAL or words[0] is None or len(set(words)) > 1:
        return None
    steps = sorted({generation.step for generation in restarts[-_IDENTICAL:] if generation.step is not None})
    loaded = f" (step{'s' * (len(steps) != 1)} {', '.join(map(str, steps))})" if steps else ""
    return (
        f"The job has gone on from a checkpoint {_IDENTICAL} times in a row{loaded} and has failed in the same way each time: the state that was "
        "saved is likely to be bad. Delete the steps from which it should not go on (`everstep checkpoint delete JOB STEP`), or mend the script, and "
        "submit it again with the same namespace."
    )


def _restarts(seen: JobSeen) -> list[GenerationSeen]:
    """The newest generations whose members were all new: nobody had the state, so it came from a checkpoint. Oldest first."""
    memberships = {generation.members: generation for generation in seen.generations}
    row = list(memberships.values())  # one that was published once more is one
    newest: list[GenerationSeen] = []
    for earlier, later in reversed(list(pairwise(row))):
        if set(earlier.members) & set(later.members):
            break
        newest.insert(0, later)
    return newest


def _fault(seen: JobSeen, generation: GenerationSeen) -> str | None:
    """The last line of what user code raised first in a generation, without its numbers; None if nobody's fault ended it."""
    raised = [process for process in faults(seen) if process.id in generation.members]
    lines = told_fault(raised[0]).strip().splitlines() if raised else []
    return _NUMBERS.sub("#", lines[-1]) if lines else None
