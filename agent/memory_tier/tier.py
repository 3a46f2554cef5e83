"""A node's memory tier: on or off as its plan says, and known to its agent.

It starts with the last plan that it was told, so that it serves while agent and control plane are away, and stops nothing when they go.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from agent.memory_tier import budget, faults, mounting
from agent.memory_tier.backlog import Backlog
from agent.memory_tier.control import Control, Told
from agent.memory_tier.running import Outside, Running
from agent.memory_tier.settings import Settings
from agent.memory_tier.telling import Telling
from everstep.protocol import Fault, FaultReport
from everstep.shards import Seal
from everstep.tiers import TierPlan, TierReport

log = logging.getLogger(__name__)

OFF_DRAIN_S = 30.0
"""How long a tier that is switched off goes on draining. Its agent waits a little longer than that for it."""
EVERY_S = 1.0
"""How often it is looked whether there is something new to tell of the tier."""
_NOW_AND_THEN = 30
_SHARE = 50
"""A change of a fiftieth of the cap is worth telling."""


class Tier:
    """``now`` is in Unix seconds. Plans, faults and the end come from several threads; one lock keeps them apart."""

    def __init__(self, settings: Settings, *, now: Callable[[], float], rng: Random) -> None:
        self._settings = settings
        self._now = now
        self._rng = rng
        self._kept = settings.state_dir / "memory_tier"
        self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._plan: TierPlan | None = None
        self._running: Running | None = None
        self._note: str | None = None
        self._told: TierReport | None = None
        self._stopped = threading.Event()
        self._control = Control(settings.control, take=self.take, strike=self._strike, greet=self._greeting)
        self._telling = Telling(self._kept / "told.json", report=self._control.report, now=now)
        self._looking = threading.Thread(target=self._look, name="reports", daemon=True)

    def start(self) -> None:
        """Raises OSError when the control socket cannot be served."""
        self._telling.start()
        with self._lock:
            plan = _load(self._kept / "plan.json")
            if plan is not None:
                self._apply(plan)
            self._control.start()
        self._looking.start()

    def take(self, plan: TierPlan) -> None:
        """What is told last replaces what was told before. A plan's number tells one from another, and not which is newer: it is a digest."""
        with self._lock:
            self._apply(plan)
            try:
                _save(self._kept / "plan.json", plan)
            except OSError as error:
                log.warning("plan %d cannot be kept for the next start of the tier: %s", plan.number, error)
        self._telling.flush()  # that it is off is the last thing that is told of it
        self._tell_of_tier()

    def stop(self) -> None:
        """Ends everything but the shards."""
        self._stopped.set()
        self._looking.join()
        with self._lock:
            if self._running is not None:
                self._running.stop()
                self._running = None
        self._telling.stop()
        self._control.stop()

    # ------------------------------------------------------------ on, off, larger, smaller

    def _apply(self, plan: TierPlan) -> None:
        before, self._plan = self._plan, plan
        try:
            if plan.allocation_percent is None:
                self._turn_off()
            elif self._running is None:
                self._turn_on(plan)
            else:
                self._running.know(plan)
                if before is None or before.allocation_percent != plan.allocation_percent:
                    self._note = self._resize(self._running, self._allocated(plan))
        except (OSError, ValueError, RuntimeError) as error:
            note = f"the memory tier of node {self._settings.node} cannot be as plan {plan.number} says: {error}"
            if note != self._note:
                log.exception("%s", note)
            self._note = note

    def _turn_on(self, plan: TierPlan) -> None:
        allocated = self._allocated(plan)
        ground = mounting.prepare(self._settings.folder, nbytes=allocated, is_mounting=self._settings.is_mounting)
        outside = Outside(now=self._now, rng=self._rng, changed=self._telling.changed, durable=self._control.report)
        running = Running(self._settings, outside, allocated_bytes=allocated, granule=ground.granule)
        note = self._resize(running, allocated)  # an earlier process may have had a larger cap
        try:
            running.start(plan)
        except (OSError, RuntimeError):  # an address is taken, or there is no thread left
            running.stop()
            raise
        self._running, self._note = running, note or ground.note
        log.info("the memory tier is on: %s", budget.in_mib(allocated))

    def _turn_off(self) -> None:
        """Everything is given back. What was to be made durable goes to the object store first, as far as there is time: then it is said what was given up."""
        running, self._running = self._running, None
        if running is not None:
            left = running.finish(OFF_DRAIN_S)
            running.stop()
            running.store.resize(0)
            self._note = _given_up(left) if left.nbytes else None
            log.log(logging.WARNING if self._note else logging.INFO, "the memory tier is off; %s", self._note or "nothing is lost")
        mounting.give_back(self._settings.folder)
        shutil.rmtree(self._settings.folder, ignore_errors=True)

    def _resize(self, running: Running, allocated: int) -> str | None:
        """What an operator should know of it."""
        gone = running.store.resize(allocated)
        note = f"the memory tier became {budget.in_mib(allocated)}: {_words(gone)} went, the oldest first" if gone else None
        if note:
            log.warning("%s", note)
        why = mounting.resize(self._settings.folder, nbytes=max(allocated, running.store.usage.used))
        return f"the memory tier's mount keeps its size: {why}" if why else note

    def _allocated(self, plan: TierPlan) -> int:
        return budget.share_of(plan.allocation_percent or 0, node_mib=self._settings.memory_mib, machine_bytes=budget.total_bytes())

    # ------------------------------------------------------------ telling

    def _greeting(self) -> Iterator[Told]:
        with self._lock:
            running = self._running
        present = running.store.seals() if running else ()
        unverified = running.store.unverified() if running else ()
        yield from self._telling.everything(present, unverified)
        yield from running.draining.told() if running else ()
        yield self._report()

    def _strike(self, fault: Fault) -> FaultReport:
        with self._lock:
            running = self._running
        return faults.strike(fault, running.store if running else None)

    def _report(self) -> TierReport:
        with self._lock:
            running, number, note = self._running, self._plan.number if self._plan else 0, self._note
        if running is None:
            return TierReport(number, 0, 0, note=note, at=self._now())
        usage, backlog = running.store.usage, running.draining.backlog()
        return TierReport(
            number,
            usage.allocated,
            usage.used,
            backlog_bytes=backlog.nbytes,
            waiting_since=backlog.waiting_since,
            outage=backlog.outage,
            refusals=usage.refusals,
            note=backlog.note or note,
            at=self._now(),
        )

    def _look(self) -> None:
        rounds = 0
        while not self._stopped.wait(EVERY_S):
            rounds += 1
            self._retry()
            self._tell_of_tier(is_due=rounds % _NOW_AND_THEN == 0)

    def _retry(self) -> None:
        """An address may still have been somebody else's, a folder in the way."""
        with self._lock:
            if self._running is None and self._plan is not None and self._plan.allocation_percent is not None:
                self._apply(self._plan)

    def _tell_of_tier(self, *, is_due: bool = False) -> None:
        report = self._report()
        if is_due or self._told is None or _is_news(report, self._told):
            self._told = report
            self._control.report(report)


def _is_news(report: TierReport, told: TierReport) -> bool:
    def kind(one: TierReport) -> TierReport:
        return replace(one, at=0.0, used_bytes=0, backlog_bytes=0, waiting_since=None)

    step = max(1, report.allocated_bytes // _SHARE)
    has_moved = abs(report.used_bytes - told.used_bytes) >= step or abs(report.backlog_bytes - told.backlog_bytes) >= step
    is_waiting = (report.waiting_since is None) != (told.waiting_since is None)
    return kind(report) != kind(told) or has_moved or is_waiting


def _given_up(left: Backlog) -> str:
    why = left.outage or f"it was not drained within {OFF_DRAIN_S:.0f} s"
    return f"{budget.in_mib(left.nbytes)} of steps that were to be durable were given up with the memory tier: {why}"


def _words(gone: tuple[Seal, ...]) -> str:
    steps = sorted({(seal.namespace, seal.step) for seal in gone})
    named = ", ".join(f"{namespace}/{step}" for namespace, step in steps[:5])
    return f"{len(gone)} shards of steps {named}{' and others' if len(steps) > 5 else ''}"  # noqa: PLR2004  (so many are named)


def _load(path: Path) -> TierPlan | None:
    try:
        return TierPlan.from_wire(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _save(path: Path, plan: TierPlan) -> None:
    """For this node's owner alone: tokens are in it. Raises OSError."""
    draft = path.with_suffix(".draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(plan.to_wire()))
    draft.replace(path)
