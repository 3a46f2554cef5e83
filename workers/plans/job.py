"""What to do about one job. Pure: same snapshot, same actions.

A job is a row of generations: each is a full membership, and the next one is published when a member is lost. Survivors keep their ranks and
their processes; a spare takes a dead rank's place. Invariants:

* a published generation has ``world_size`` members, all alive and ready as far as anybody knows;
* nobody counts as dead on one witness's word alone: an exit is the word of its own agent, a lost node takes a closed stream *and* a peer
  whose collective broke, or the conclusion of the node's own plan;
* whoever holds no state is never the only one left, unless there is a complete checkpoint from which everybody goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from models.ids import NodeId, ProcessId
from models.job.states import ENDED, JobState, ProcessState
from workers.plans import elastic, leaving, placement, plain, queueing, remaking, resuming, retry, slow, stragglers
from workers.plans.decision import Decision, soonest
from workers.plans.evidence import Casualties, casualties, evidence_at, faults, told_fault
from workers.plans.hangs import hanging
from workers.plans.job_seen import (
    Action,
    Await,
    CountRestarts,
    GenerationSeen,
    GiveUp,
    Halt,
    JobSeen,
    Move,
    ProcessSeen,
    Publish,
    Resize,
    Say,
    Slot,
    Start,
    Withdraw,
)

_POLL = timedelta(seconds=5)
"""Waiting for something that wakes the job by itself: this often it is looked at all the same."""

_VERDICT = "everstep.errors.LossStopped: "
"""All ranks have agreed to stop: none is to try again."""


def plan(seen: JobSeen, now: datetime) -> Decision[Action]:
    """What to do about one job."""
    if seen.state in ENDED:
        return _clean_up(seen, now)
    if seen.is_stopping or seen.cluster_is_going:
        return _halt(seen, now)
    if seen.state is JobState.EVICTING:
        return queueing.leave(seen)
    if seen.state is JobState.QUEUED:
        return queueing.place(seen)
    if seen.is_plain:
        return plain.plan(seen, now)
    fault = _failed_for_good(seen)
    if fault is not None:
        return Decision((Move(JobState.FAILED, fault),))
    lost = casualties(seen, now)
    given_up = tuple(GiveUp(process, why) for process, why in lost.doomed.items())
    given_up += tuple(GiveUp(process, why, is_planned=True) for process, why in lost.released.items())
    counted = retry.count(seen)
    restarts = (CountRestarts(counted, "User code has failed once more."),) if counted > seen.restarts else ()
    rest = _form(seen, lost, now) if seen.generation is None else _keep(seen, seen.generation, lost, now)
    actions = queueing.with_awaits(seen, rest.actions)
    return Decision((*restarts, *given_up, *actions), soonest(rest.again_in, lost.again_in))


# ---------------------------------------------------------------------------------------------- before and after


def _halt(seen: JobSeen, now: datetime) -> Decision[Action]:
    why = "Its cluster is being deleted." if seen.cluster_is_going else "A stop was requested."
    if not seen.alive or seen.cluster_is_going:
        return Decision((Move(JobState.STOPPED, why),))
    if seen.halted_at is None:
        return Decision((Halt(why), *_say(seen, "Stopping: its processes are told to end.")), seen.grace + seen.patience.halt)
    rest = seen.halted_at + seen.grace + seen.patience.halt - now
    if rest > timedelta(0):
        return Decision((), rest)
    return Decision((*(GiveUp(process.id, "it did not end when told to") for process in seen.alive), Move(JobState.STOPPED, why)))


def _clean_up(seen: JobSeen, now: datetime) -> Decision[Action]:
    """Processes of a job that has ended are given time to leave; then nothing is left that a node should know."""
    deadline = (seen.halted_at or now) + seen.grace + seen.patience.halt
    actions: list[Action] = []
    left = []
    for process in seen.alive:
        node = seen.nodes.get(process.node)
        if node is None or node.is_going or now >= deadline:
            actions.append(GiveUp(process.id, "the job has ended"))
        else:
            left.append(process)
    busy = {process.node for process in left}
    actions += [Withdraw(told.node, "The job has ended.") for told in seen.told if told.is_delivered and told.node not in busy]
    is_untold = any(not told.is_delivered for told in seen.told)
    return Decision(tuple(actions), soonest(deadline - now if left else None, _POLL if is_untold else None))


def _failed_for_good(seen: JobSeen) -> str | None:
    """What user code raised, when it is in vain to try again; None as long as it isn't.

    Before anything has trained, all processes raising is the script's own fault, however many restarts are allowed.
    """
    if hung := hanging(seen).failure:
        return hung
    raised, words = faults(seen), retry.words(seen)
    if words is None:
        return None
    diagnosis = resuming.diagnosis(seen)
    are_all_dead = not seen.alive and len(raised) >= seen.world_size and not seen.has_ever_formed
    is_verdict = _VERDICT in words
    if retry.count(seen) > seen.max_restarts or are_all_dead or is_verdict or diagnosis is not None:
        return "\n".join(part for part in (words, diagnosis) if part)
    return None


# ---------------------------------------------------------------------------------------------- the first generation


def _form(seen: JobSeen, lost: Casualties, now: datetime, *, resumes: str | None = None) -> Decision[Action]:
    """Publishes a generation of newcomers as soon as enough whole nodes are ready: the first one, or one that ``resumes`` from a checkpoint."""
    ended_well = [one for one in seen.processes if one.state is ProcessState.EXITED and one.exit_code == 0 and resumes is None]
    if not lost.alive and resumes is None and len(ended_well) >= seen.world_size:
        return Decision((Move(JobState.SUCCEEDED, "Every process has ended with exit code 0."),))
    to = elastic.first_size(seen, len({process.node for process in lost.alive}), seen.awaits_since, now)
    if to is not None:
        return Decision((Resize(to, f"Forms with {to} nodes instead of {seen.replicas}."),), timedelta(0))
    members = _first_members(seen, lost)
    if members:
        why = resumes or f"{seen.replicas} nodes are ready."
        return Decision((*remaking.recovering(seen, why), Publish(tuple(process.id for process in members), why)), _POLL)
    raised = faults(seen)
    if raised and now - raised[-1].state_since < seen.patience.fault:
        return Decision((), seen.patience.fault)  # whether the others fail too is known in a moment
    short = seen.world_size - len(lost.alive) - len(ended_well)
    spares = seen.spares * seen.processes_per_node
    started, missing = _start(seen, lost, now, needed=short, spares=min(spares, spares + short))
    away = queueing.gives_back(seen, now) if missing.needed else None
    if away is not None:
        return Decision(queueing.withdrawn(seen, away), _POLL)
    ready = sum(process.state is ProcessState.READY for process in lost.alive)
    waits = f"{resumes} " if resumes else ""
    waits += f"{ready} of {seen.world_size} processes are ready."
    waits += f" Waits for nodes for {missing.needed} more." if missing.needed else ""
    actions = (*remaking.recovering(seen, waits), *started, *_awaits(seen, missing), *_say(seen, waits))
    return Decision(actions, soonest(_POLL, placement.cooling(seen, now)))


def _first_members(seen: JobSeen, lost: Casualties) -> list[ProcessSeen]:
    """Ranks ordered by node, then by local rank; only whole nodes count. Empty when there are not enough."""
    members: list[ProcessSeen] = []
    for node in sorted(seen.nodes.values(), key=lambda node: node.age):
        ready = [one for one in lost.alive if one.node == node.id and one.state is ProcessState.READY and node.can_be_told]
        if len(ready) == seen.processes_per_node and len(members) < seen.world_size:
            members += sorted(ready, key=lambda process: process.local_rank)
    return members if len(members) == seen.world_size else []


# ---------------------------------------------------------------------------------------------- every further one


@dataclass(frozen=True)
class _Ranks:
    """The members of the current generation, by what has become of them."""

    alive: list[ProcessSeen]
    dead: list[ProcessSeen]
    are_done: bool


def _ranks(seen: JobSeen, generation: GenerationSeen, lost: Casualties) -> _Ranks:
    members = [seen.by_id[process] for process in generation.members]
    counted = {process.id for process in lost.alive}
    alive = [process for process in members if process.id in counted]
    left_well = [process for process in members if process.state is ProcessState.EXITED and process.exit_code == 0]
    is_missed = any(process.broken >= generation.number for process in alive)
    dead = [process for process in members if process.id not in counted and (is_missed or process not in left_well)]
    done = [process for process in members if process.state is ProcessState.FINISHED or process in left_well]
    return _Ranks(alive, dead, bool(members) and len(done) == len(members))


def _keep(seen: JobSeen, generation: GenerationSeen, lost: Casualties, now: datetime) -> Decision[Action]:
    ranks = _ranks(seen, generation, lost)
    if ranks.are_done:
        return Decision((Move(JobState.SUCCEEDED, "All steps are done."),))
    if not ranks.dead:
        return _nobody_died(seen, generation, ranks, lost, now)
    if seen.has_ever_formed and not any(process.reformed for process in ranks.alive) and not _former(seen, generation, lost):
        return _nobody_holds(seen, generation, ranks, lost, now)
    return _replace(seen, generation, ranks, lost, now)


def _nobody_holds(seen: JobSeen, generation: GenerationSeen, ranks: _Ranks, lost: Casualties, now: datetime) -> Decision[Action]:
    """Everybody who held the state is gone: new processes go on from the newest complete checkpoint, and without one the job has failed.

    A save may have ended just before its processes did, and be told a moment later: the job does not fail within that moment.
    """
    if seen.checkpoint is not None and seen.elastic is not None:
        return _form(seen, lost, now, resumes=resuming.told(seen, seen.checkpoint))
    if seen.checkpoint is not None:
        return _replace(seen, generation, ranks, lost, now, resumes=resuming.told(seen, seen.checkpoint))
    rest = max(process.state_since for process in ranks.dead) + seen.patience.told - now
    if seen.has_namespace and rest > timedelta(0):
        return Decision((), rest)
    return Decision((Move(JobState.FAILED, _told_loss(seen, generation)),))


def _told_loss(seen: JobSeen, generation: GenerationSeen) -> str:
    """That nobody holds the state any more, and what user code raised where that is why: the commonest mistake fails in every rank at once."""
    told = "Every process that held the training's state is gone"
    if seen.has_namespace:
        told += ", and no tier has a complete checkpoint of it"
    raised = [process for process in faults(seen) if process.id in generation.members]
    return f"{told}; the last of them failed:\n{told_fault(raised[-1])}" if raised else f"{told}."


def _replace(
    seen: JobSeen, generation: GenerationSeen, ranks: _Ranks, lost: Casualties, now: datetime, *, resumes: str | None = None
) -> Decision[Action]:
    """Dead ranks are taken by ready spares, all at once; short of spares, the survivors wait for new processes.

    ``resumes`` says from which checkpoint everybody goes on, where nobody holds the state.
    """
    idle = _idle(seen, generation, lost)
    ready = [process for process in idle if process.state is ProcessState.READY and seen.nodes[process.node].can_be_told]
    if not any(process.reformed for process in ranks.alive):
        ready = [*_former(seen, generation, lost)[:1], *ready]  # it gave its rank away and yet is the last to hold the state
    chosen = placement.substitutes(seen, ranks.dead, ready)
    names = ", ".join(f"rank {generation.members.index(process.id)} ({lost.why(process)})" for process in ranks.dead)
    recovering = remaking.recovering(seen, f"Lost {names}.")
    spares = seen.spares * seen.processes_per_node
    if len(chosen) == len(ranks.dead):
        members = tuple(chosen[one].id if one in chosen else one for one in generation.members)
        cause = resumes or f"Lost {names}; spares take over."
        publish = Publish(members, cause, evidence_at(seen, generation, ranks.dead))
        started, _ = _start(seen, lost, now, needed=0, spares=spares - (len(idle) - len(chosen)))
        return Decision((*recovering, publish, *started), _POLL)
    short = len(ranks.dead) - len(idle)
    started, missing = _start(seen, lost, now, needed=short, spares=min(spares, spares - len(idle) + len(ranks.dead)))
    wait = elastic.Wait(
        _since(ranks, now),
        f"Lost {names}.",
        is_warming=not missing.needed,
        are_newcomers=not any(process.reformed for process in ranks.dead),
        evidence_at=evidence_at(seen, generation, ranks.dead),
    )
    fewer = elastic.without_lost(seen, generation, ranks.alive, ready, wait, now)
    if isinstance(fewer, Publish):
        return Decision((*recovering, fewer), _POLL)
    away = queueing.gives_back(seen, now) if missing.needed and fewer is None else None
    if away is not None:
        return Decision((*recovering, *queueing.withdrawn(seen, away)), _POLL)
    waits = _say(seen, f"{resumes or wait.lost} Waits for {missing.told}.")
    again = soonest(_POLL, fewer, placement.cooling(seen, now))
    return Decision((*recovering, *started, *_awaits(seen, missing), *waits), again)


def _since(ranks: _Ranks, now: datetime) -> datetime:
    """Since when ranks are missing."""
    return min((process.state_since for process in ranks.dead if not process.is_alive), default=now)


def _nobody_died(seen: JobSeen, generation: GenerationSeen, ranks: _Ranks, lost: Casualties, now: datetime) -> Decision[Action]:
    is_formed = generation.is_formed or all(process.reformed >= generation.number for process in ranks.alive)
    caused = f" {generation.cause}" if seen.elastic is not None and generation.cause else ""
    formed = (Move(JobState.TRAINING, f"Generation {generation.number} has formed.{caused}"),)
    moved = formed if is_formed and seen.state is not JobState.TRAINING else ()
    idle = _idle(seen, generation, lost)
    is_ending = any(process.state is ProcessState.FINISHED for process in ranks.alive)
    remade = remaking.broken(seen, generation, ranks.alive, now)
    if remade is None and not is_formed:
        remade = remaking.overdue(seen, generation, ranks.alive, now)
    is_remade = remade is not None and bool(remade.actions)
    leave = leaving.NOBODY
    if not (is_ending or is_remade):
        leave = leaving.leave(seen, generation, ranks.alive, idle, now, is_formed=is_formed)
    fewer = None if leave.publish or is_ending else elastic.without_stranded(seen, ranks.alive, now)
    course = elastic.STAYS
    if is_formed and remade is None and fewer is None and not is_ending and leaving.is_idle(leave):
        course = elastic.course(seen, generation, ranks.alive, idle, now)
        leave = leave if course.publish else stragglers.relieve(seen, generation, idle, now, recruited=course.recruited)
        course = elastic.STAYS if leave.publish else course
    free = len(idle) - leave.reserved - leave.moved - course.recruited
    spares = 0 if is_ending else seen.spares * seen.processes_per_node - free
    started, missing = _start(seen, lost, now, needed=leave.needed, spares=spares, also=course.starts)
    if leave.publish is not None:
        return Decision((*remaking.recovering(seen, leave.publish.why), leave.publish, *started), _POLL)
    other = fewer or course.publish
    if other is not None:
        resizing = (Move(JobState.RESIZING, other.why),) if moved or seen.state is JobState.TRAINING else ()
        return Decision((*moved, *resizing, other, *started), _POLL)
    again = soonest(leave.again_in, course.again_in, _POLL * 2 if missing.spares else None, _POLL if missing.needed else None)
    gone = tuple(GiveUp(process.id, elastic.NOT_NEEDED, is_planned=True) for process in course.leaves)
    waits = leave.waits or course.waits
    actions = (*moved, *(remade.actions if remade else ()), *gone, *started, *(_say(seen, waits) if waits else ()))
    return Decision(actions, soonest(again, remade.again_in if remade else None))


# ---------------------------------------------------------------------------------------------- shared


@dataclass(frozen=True)
class _Missing:
    needed: int
    spares: int

    @property
    def told(self) -> str:
        return f"nodes for {self.needed} processes" if self.needed else "new processes to be ready"


def _idle(seen: JobSeen, generation: GenerationSeen, lost: Casualties) -> list[ProcessSeen]:
    """Processes that count and play no rank: spares, warm or warming up. One whose node is to be left is none, nor one that was slow."""
    others = frozenset(generation.members) | {process.id for process, _ in slow.laggards(seen)}
    return [process for process in lost.alive if process.id not in others and not seen.nodes[process.node].must_be_left]


def _former(seen: JobSeen, generation: GenerationSeen, lost: Casualties) -> list[ProcessSeen]:
    """Those that gave their ranks away and still hold the state."""
    members = frozenset(generation.members)
    besides = [process for process in lost.alive if process.id not in members and process.reformed]
    return [process for process in besides if process.state is ProcessState.READY and seen.nodes[process.node].can_be_told]


def _start(
    seen: JobSeen, lost: Casualties, now: datetime, *, needed: int, spares: int, also: Sequence[NodeId] = ()
) -> tuple[tuple[Action, ...], _Missing]:
    """New processes, as far as there are slots, and how many found none; ``also`` are nodes for whole crews of newcomers.

    What is needed goes where everything is warm; a spare rather goes to a node of its own, where the loss of another one spares it. Nodes of spare
    pools are for what is needed, when there are no others.
    """
    vacated = placement.vacated_slots(seen, now, frozenset(lost.doomed))
    free, pooled = (placement.slots_of(seen, nodes(seen), now) for nodes in (placement.free_nodes, placement.spare_nodes))
    first = _distinct([*vacated, *free, *pooled])[: max(0, needed)]
    rest = [slot for slot in _distinct([*free, *vacated]) if slot not in first][: max(0, spares)]
    news = [(node, local_rank) for node in also for local_rank in range(seen.processes_per_node)]
    places = _distinct([*first, *rest, *news])
    why = f"{len(first)} processes are needed, {len(rest)} spares." + (f" Grows by {len(also)} nodes." if also else "")
    started = (Start(tuple(places), why),) if places else ()
    return started, _Missing(max(0, needed) - len(first), max(0, spares) - len(rest))


def _awaits(seen: JobSeen, missing: _Missing) -> tuple[Await, ...]:
    nodes = -(-missing.needed // seen.processes_per_node)
    return (Await(nodes, f"Waits for {nodes} nodes."),) if nodes else ()


def _distinct(slots: Sequence[Slot]) -> list[Slot]:
    return list(dict.fromkeys(slots))


def _say(seen: JobSeen, why: str) -> tuple[Say, ...]:
    return (Say(why),) if seen.why != why else ()


__all__ = ["Action", "JobSeen", "ProcessId", "plan"]
