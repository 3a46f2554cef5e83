"""Which generation a step is booked to: the one that did it first, in whichever order the reports come.

A step that is done again is told by two generations, and a late report may tell of the first time after the second. What is kept is the earlier time, and
of two equal ones, which are the same step told again by a newer generation, the older generation's. The sums that generations keep of their steps follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.job import accounts, queries
from models.job.ledger import Tally
from models.job.table import Generation, Job, Step


@dataclass(frozen=True)
class Committed:
    """A step that rank 0 has committed; ``stall_s`` of its ``seconds`` were spent waiting for a save."""

    number: int
    loss: float | None
    seconds: float
    at: datetime
    stall_s: float = 0.0


def insert_steps(session: Session, job: Job, generation: Generation, steps: Sequence[Committed]) -> list[Committed]:
    """Inserts the steps that are new, books them to a locked generation, and returns them."""
    by_number = {step.number: step for step in sorted(steps, key=lambda step: step.at, reverse=True)}
    rows = [{"job_id": job.id, "number": step.number, **_columns(step, generation.number)} for step in by_number.values()]
    inserted = session.scalars(insert(Step).on_conflict_do_nothing().returning(Step.number), rows)
    fresh = [by_number[number] for number in inserted]
    accounts.keep(generation, accounts.tally_of(generation) + _tally(fresh))
    return fresh


def correct_steps(
    session: Session, job: Job, generation: Generation, steps: Sequence[Committed], fresh: Sequence[Committed]
) -> bool:
    """Of steps that were known already, those that a locked generation did earlier become its own. Whether there were any."""
    new = {step.number for step in fresh}
    told = {step.number: step for step in sorted(steps, key=lambda step: step.at, reverse=True) if step.number not in new}
    robbed: set[int] = set()
    for row in session.scalars(select(Step).where(Step.job_id == job.id, Step.number.in_(told))):
        step = told[row.number]
        if (step.at, generation.number) >= (row.at, row.generation):
            continue
        job.productive_s += step.seconds - row.seconds
        robbed.add(row.generation)
        for name, value in _columns(step, generation.number).items():
            setattr(row, name, value)
    session.flush()
    for number in robbed | {generation.number} if robbed else ():
        _sum_again(session, job, number)
    return bool(robbed)


def _columns(step: Committed, generation: int) -> dict[str, Any]:
    return {"generation": generation, "loss": step.loss, "seconds": step.seconds, "at": step.at, "stall_s": step.stall_s}


def _sum_again(session: Session, job: Job, number: int) -> None:
    """Rare: a report has come after a later generation had done its steps again."""
    generation = queries.generation(session, job.id, number, lock=True)
    if generation is not None:
        rows = session.scalars(select(Step).where(Step.job_id == job.id, Step.generation == number))
        accounts.keep(generation, _tally(rows))


def _tally(steps: Sequence[Committed] | Any) -> Tally:
    return Tally.of(accounts.done(step.at, step.seconds, step.stall_s) for step in steps)
