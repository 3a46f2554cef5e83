"""Operations that tell how much of a job's time was productive."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from api.operations import goodput
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, Wire
from models.errors import NotFound


class GoodputWanted(Asked):
    """Of one job, or of all jobs that a cluster has had; exactly one of them."""

    job_id: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    cluster: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None


class GoodputShape(Wire):
    """``goodput`` is productive seconds, those of distinct committed steps, by the seconds since jobs first got nodes; sums over ``jobs``.

    It is null before any of them has had nodes. ``steps_lost`` had to be done again; ``recoveries`` are memberships after the first,
    ``restarts`` processes that user code has brought down.
    """

    jobs: int
    goodput: float | None
    productive_s: float
    wall_s: float
    steps: int
    steps_lost: int
    recoveries: int
    restarts: int
    evictions: int


def get(work: Work, asked: GoodputWanted) -> GoodputShape:
    """How much of the time was productive, of a job or of all jobs of a cluster."""
    found = goodput.measure(work, job_id=asked.job_id, cluster=asked.cluster)
    return GoodputShape(
        jobs=found.jobs,
        goodput=found.share,
        productive_s=round(found.productive_s, 6),
        wall_s=round(found.wall_s, 6),
        steps=found.steps,
        steps_lost=found.steps_lost,
        recoveries=found.recoveries,
        restarts=found.restarts,
        evictions=found.evictions,
    )


GOODPUT: OwnTable = (Own("GetGoodput", "GET", "/v1/goodput", GoodputWanted, GoodputShape, get, errors=(NotFound,)),)
