"""Schedules in AWS's words: ``cron(minute hour day-of-month month day-of-week year)``, in UTC. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from aws_croniter import AwsCroniter

from models.errors import Invalid

_CRON = re.compile(r"cron\((.+)\)")


def check_schedule(expression: str, *, where: str, now: datetime) -> None:
    """Raises Invalid for what is no schedule, or one whose time never comes."""
    if next_time(expression, now, where=where) is None:
        raise Invalid(message=f"{where}: '{expression}' names no time that is still to come.")


def next_time(expression: str, after: datetime, *, where: str = "ScheduleExpression") -> datetime | None:
    """The first time of the schedule after a moment; None if there is none.

    Raises:
        Invalid: this is no schedule; ``where`` says whose.
    """
    found = _CRON.fullmatch(expression)
    try:
        if found is None:
            message = "it has another form"
            raise ValueError(message)  # noqa: TRY301  (told as what the parser finds)
        first: datetime | None = AwsCroniter(found[1]).get_next(after, 1)[0]
    except (ValueError, OverflowError) as error:
        raise Invalid(
            message=f"{where}: '{expression}' is no cron(minute hour day-of-month month day-of-week year): {error}."
        ) from error
    return first
