"""Operations that tell how much of a job's time was productive."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from api.operations import goodput
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, Wire, word
from models.errors import NotFound
from models.job.ledger import ACCOUNTS


class GoodputWanted(Asked):
    """Of one job, or of all jobs that a cluster or a team has had; exactly one of them."""

    job_id: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    cluster: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    team: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None


class AccountShape(Wire):
    """Seconds of accelerators, or of nodes where there are none, and their share of all that were held."""

    account: str
    seconds: float
    share: float


class GoodputShape(Wire):
    """``accounts`` say where each second of each accelerator went that the jobs held, to exactly one account; they sum to ``allocated_s``.

    ``goodput`` is the productive share of those that had, or were to have, a rank: all but ``Spare``. ``ettr`` is the productive share of the jobs' time
    since they were submitted, however many accelerators they had. Both are null before there is anything to divide by, and an account without time
    has 0. Sums over ``jobs``: ``productive_s`` are the seconds of distinct committed steps, ``wall_s`` those since jobs first got nodes; ``steps_lost`` had to be done
    again; ``recoveries`` are memberships after the first, ``restarts`` processes that user code has brought down.
    """

    jobs: int
    goodput: float | None
    ettr: float | None
    allocated_s: float
    accounts: tuple[AccountShape, ...]
    productive_s: float
    wall_s: float
    steps: int
    steps_lost: int
    recoveries: int
    restarts: int
    evictions: int


def get(work: Work, asked: GoodputWanted) -> GoodputShape:
    """Where the time of a job went, or of all jobs of a cluster or a team, and how much of it was productive. Right at any moment, also of running jobs."""
    found = goodput.measure(work, job_id=asked.job_id, cluster=asked.cluster, team=asked.team)
    books = found.books
    return GoodputShape(
        jobs=found.jobs,
        goodput=found.share,
        ettr=found.ettr,
        allocated_s=books.held / 1e6,
        accounts=tuple(
            AccountShape(
                account=word(account), seconds=books.of(account) / 1e6, share=round(books.of(account) / max(1, books.held), 6)
            )
            for account in ACCOUNTS
        ),
        productive_s=round(found.productive_s, 6),
        wall_s=round(found.wall_s, 6),
        steps=found.steps,
        steps_lost=found.steps_lost,
        recoveries=found.recoveries,
        restarts=found.restarts,
        evictions=found.evictions,
    )


GOODPUT: OwnTable = (Own("GetGoodput", "GET", "/v1/goodput", GoodputWanted, GoodputShape, get, errors=(NotFound,)),)
