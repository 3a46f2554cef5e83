"""A job's rows as the history from which its time is booked (``models.job.ledger``)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from models.job.ledger import Books, Done, History, Holding, Membership, Micros, Tally, book
from models.job.states import ALIVE
from models.job.table import Generation, Job, JobProcess

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_AGE_S = 1e10
_ROLLED_FORWARD = "rolled-forward"


def micros(at: datetime) -> Micros:
    return (at - _EPOCH) // _US


def length(seconds: float) -> Micros:
    """No step takes less than no time, nor an age, whatever its clock says."""
    return round(min(max(0.0, seconds), _AGE_S) * 1_000_000) if math.isfinite(seconds) else 0


def done(at: datetime, seconds: float, stall_s: float) -> Done:
    return Done(micros(at), length(seconds), length(stall_s))


def tally_of(generation: Generation) -> Tally:
    """The sums that its row keeps."""
    fresh, last = generation.fresh_at, generation.last_at
    return Tally(
        generation.fresh_steps,
        generation.trained_us,
        generation.stalled_us,
        None if fresh is None else micros(fresh),
        None if last is None else micros(last),
    )


def keep(generation: Generation, tally: Tally) -> None:
    """Writes the sums into its row."""
    generation.fresh_steps, generation.trained_us, generation.stalled_us = tally.steps, tally.trained, tally.stalled
    generation.fresh_at = None if tally.fresh is None else _EPOCH + tally.fresh * _US
    generation.last_at = None if tally.last is None else _EPOCH + tally.last * _US


def books(
    job: Job, processes: Sequence[JobProcess], generations: Sequence[Generation], weights: Mapping[str, int], *, now: datetime
) -> Books:
    """Where a job's time went until now. ``weights`` are the accelerators of its nodes, 1 for a node that has none and for one that is not named."""
    return book(history(job, processes, generations, weights), micros(now))


def history(job: Job, processes: Sequence[JobProcess], generations: Sequence[Generation], weights: Mapping[str, int]) -> History:
    """``generations`` are all of the job's, in order."""
    holdings = _holdings(processes, weights)
    alive = {process.node_id for process in processes if process.state in ALIVE}
    began = [micros(process.created_at) for process in processes if process.state in ALIVE]
    return History(
        holdings=tuple(holdings),
        memberships=tuple(_memberships(processes, generations)),
        complete=max(began) if len(alive) >= job.replicas else None,
        ended=None if job.ended_at is None else micros(job.ended_at),
    )


def _holdings(processes: Sequence[JobProcess], weights: Mapping[str, int]) -> Iterable[Holding]:
    """A node is the job's as long as any of its processes is wanted or alive there."""
    lives: dict[str, list[tuple[Micros, Micros | None]]] = defaultdict(list)
    for process in processes:
        end = None if process.state in ALIVE else micros(process.state_since)
        lives[process.node_id].append((micros(process.created_at), end))
    for node, spans in sorted(lives.items()):
        for since, until in _merged(spans):
            yield Holding(node, since, until, max(1, weights.get(node, 1)))


def _merged(spans: Iterable[tuple[Micros, Micros | None]]) -> Iterable[tuple[Micros, Micros | None]]:
    """Spans of time that overlap or touch, as one; None: it lasts."""
    merged: list[tuple[Micros, Micros | None]] = []
    for since, until in sorted(spans, key=lambda span: span[0]):
        last = merged[-1] if merged else None
        if last is None or (last[1] is not None and since > last[1]):
            merged.append((since, until))
        elif last[1] is not None:
            merged[-1] = (last[0], None if until is None else max(last[1], until))
    return merged


def _memberships(processes: Sequence[JobProcess], generations: Sequence[Generation]) -> Iterable[Membership]:
    nodes = {process.id: process.node_id for process in processes}
    asked_at = {process.id: micros(process.created_at) for process in processes}
    before: list[str] = []
    for generation in generations:
        fresh = [asked_at[one] for one in generation.members if one not in before and one in asked_at]
        evidence = None if generation.evidence_at is None else micros(generation.evidence_at)
        grouped, transferred = (_ended(generation, phase) for phase in ("grouped", "transferred"))
        formed = None if generation.formed_at is None else micros(generation.formed_at)
        yield Membership(
            nodes=frozenset(nodes[one] for one in generation.members if one in nodes),
            decided=micros(generation.decided_at),
            evidence=evidence,
            asked=min(fresh, default=None),
            complete=max(fresh, default=None),
            grouped=grouped,
            resumed=formed if formed is None or transferred is None else min(formed, transferred),
            is_anew=bool(before) and not set(before) & set(generation.members),
            is_rescale=bool(before) and evidence is None and len(before) != len(generation.members),
            is_kept=any(told.get("source") == _ROLLED_FORWARD for told in generation.reports.values()),
            steps_lost=generation.steps_lost,
            tally=tally_of(generation),
        )
        before = list(generation.members)


def _ended(generation: Generation, phase: str) -> Micros | None:
    """When the last rank had come so far; None as long as nobody has told."""
    told = [report["phases"][phase] for report in generation.reports.values() if report.get("phases", {}).get(phase) is not None]
    return length(max(told)) if told else None
