"""The only loop: lease → observe → plan → act → settle.

Invariants:

* one worker at a time settles a row, and a stale one cannot: what it found out is dropped under the fencing token;
* nothing is called outside while a transaction is open;
* a reconciler that calls nothing outside observes, plans and settles in one transaction with its row locked, so nothing that the row's lock
  guards can change between what it saw and what it concludes.

Losing a message, a worker or a lease costs seconds: the row itself says when it wants to be looked at.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol, Self

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from models import lease
from models.clock import Clock
from models.errors import StaleLease
from models.lease import Lease
from models.session import Sessions, hurry, unit_of_work
from workers.plans.decision import Decision
from workers.providers.base import Throttled

log = logging.getLogger(__name__)

_TRIES = 3
_FIRST_PAUSE = timedelta(seconds=0.5)
_LONGEST_PAUSE = timedelta(minutes=2)


class Reconciler(Protocol):
    """How one kind of row is brought closer to what is wanted. ``span`` is how long a lease outlives a worker that has died."""

    TABLE: ClassVar[Any]
    SPAN: ClassVar[timedelta]
    ACTS_OUTSIDE: ClassVar[bool]

    def observe(self, session: Session, row_id: str, now: datetime) -> Any:
        """A frozen snapshot, or None if there is nothing to look at."""
        ...

    def plan(self, seen: Any, now: datetime) -> Decision[Any]: ...

    def act(self, seen: Any, action: Any) -> Any:
        """Calls the outside world, in no transaction, and says what came of it. Only asked of those that act outside."""
        ...

    def settle(self, session: Session, row_id: str, results: tuple[Any, ...], now: datetime) -> None:
        """Writes the plan's actions, or what came of them outside. The row is locked."""
        ...


@dataclass(frozen=True)
class Driver:
    sessions: Sessions
    clock: Clock
    owner: str
    reconcilers: Mapping[str, Reconciler]

    def reconcile(self, kind: str, row_id: str) -> None:
        """Takes one step with one row. An error is logged and tried again later, ever more slowly; after a throttling when its provider says."""
        reconciler = self.reconcilers[kind]
        taken = self._take(reconciler, row_id)
        if taken is None:
            return
        renewal = Renewal(self, reconciler, taken)
        try:
            self._step(reconciler, renewal)
        except StaleLease:
            log.info("%s %s: the lease has passed on; results dropped", kind, row_id)
        except Throttled as error:
            log.warning("%s %s: %s", kind, row_id, error)
            self._give_back(reconciler, renewal.lease, error.rest)
        except Exception:
            log.exception("%s %s: attempt %d failed", kind, row_id, taken.attempts)
            self._give_back(reconciler, renewal.lease, pause(taken.attempts))

    def due(self, kind: str, *, limit: int = 500) -> list[str]:
        """The rows whose time has come. They come up again in a few seconds if nobody takes them meanwhile."""
        now = self.clock.now()
        reconciler = self.reconcilers[kind]
        with unit_of_work(self.sessions) as session:
            return lease.due(session, reconciler.TABLE, now=now, again_at=now + timedelta(seconds=5), limit=limit)

    def _take(self, reconciler: Reconciler, row_id: str) -> Lease | None:
        """Takes the lease, or leaves word for the one who holds it, so that its last look comes after this call."""
        for _ in range(_TRIES):
            now = self.clock.now()
            with unit_of_work(self.sessions) as session:
                if not reconciler.ACTS_OUTSIDE:
                    hurry(session)  # its step sees and settles under the row's lock: a lease that was forgotten harms nobody
                taken = lease.take(session, reconciler.TABLE, row_id, owner=self.owner, now=now, span=reconciler.SPAN)
                if taken is not None:
                    return taken
                if lease.remind(session, reconciler.TABLE, row_id, now=now):
                    return None
        return None

    def _give_back(self, reconciler: Reconciler, taken: Lease, rest: timedelta) -> None:
        with unit_of_work(self.sessions) as session:
            lease.give_back(session, reconciler.TABLE, taken, again_at=self.clock.now() + rest)

    def _step(self, reconciler: Reconciler, renewal: Renewal) -> None:
        if reconciler.ACTS_OUTSIDE:
            self._step_outside(reconciler, renewal)
            return
        taken = renewal.lease
        with unit_of_work(self.sessions) as session:
            lease.check(session, reconciler.TABLE, taken)
            now = self.clock.now()
            seen = reconciler.observe(session, taken.row_id, now)
            decision = Decision[Any]() if seen is None else reconciler.plan(seen, now)
            if decision.actions:
                reconciler.settle(session, taken.row_id, decision.actions, now)
            lease.settle(session, reconciler.TABLE, taken, again_at=_at(decision, now))

    def _step_outside(self, reconciler: Reconciler, renewal: Renewal) -> None:
        now = self.clock.now()
        with unit_of_work(self.sessions) as session:
            seen = reconciler.observe(session, renewal.lease.row_id, now)
        decision = Decision[Any]() if seen is None else reconciler.plan(seen, now)
        with renewal:
            results = tuple(reconciler.act(seen, action) for action in decision.actions)
        taken = renewal.lease
        now = self.clock.now()
        with unit_of_work(self.sessions) as session:
            lease.check(session, reconciler.TABLE, taken)
            if results:
                reconciler.settle(session, taken.row_id, results, now)
            lease.settle(session, reconciler.TABLE, taken, again_at=_at(decision, now))


class Renewal:
    """Renews a lease, from a thread, for as long as the block runs. ``lease`` is the newest, also after the block has failed.

    So a lease may be short: a worker that dies in a call holds its row up for seconds, and one whose call hangs is not joined by a second one
    that hangs at the same row.
    """

    def __init__(self, driver: Driver, reconciler: Reconciler, lease_: Lease) -> None:
        self.lease = lease_
        self._driver = driver
        self._reconciler = reconciler
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"renew {lease_.kind} {lease_.row_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        span = self._reconciler.SPAN
        while not self._is_over.wait(span.total_seconds() / 3):
            try:
                with unit_of_work(self._driver.sessions) as session:
                    until = self._driver.clock.now() + span
                    renewed = lease.renew(session, self._reconciler.TABLE, self.lease, until=until)
            except SQLAlchemyError:
                log.warning("%s %s: the lease could not be renewed", self.lease.kind, self.lease.row_id)
                continue
            if renewed is None:
                return  # it has passed on; settling will say so
            self.lease = renewed


def pause(attempts: int) -> timedelta:
    """How long a row rests after its n-th failure in a row."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * (1 << min(attempts - 1, 16)))


def _at(decision: Decision[Any], now: datetime) -> datetime | None:
    return None if decision.again_in is None else now + decision.again_in
