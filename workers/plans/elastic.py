"""How many nodes an elastic job has, and when that changes. Pure.

* No size is ever trained on that the job does not allow: never below its least, never above what is wished or left to it.
* Growth waits until nodes have been free for a while and the size has been the same for a while, which doubles with every change: capacity that comes
  and goes costs a bounded number of changes. A command is carried out at once. Nobody waits for the newcomers: they are members when they are ready.
* Lost nodes are waited for as long as the job's file says; then it goes on with those that are left.
* Somebody who holds the state always stays.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from everstep.notices import LEAVING_CAUSE
from models.ids import NodeId, ProcessId
from models.job.states import ProcessState
from workers.plans import placement
from workers.plans.decision import soonest
from workers.plans.job_seen import (
    Elasticity,
    GenerationSeen,
    JobSeen,
    Patience,
    ProcessSeen,
    Publish,
    SizeChange,
)

NOT_NEEDED = "the job is smaller now, or has no use for it"
"""Why a process is given up with which nothing has failed."""


@dataclass(frozen=True)
class Capacity:
    """Nodes beside those that a job trains on: ``at_hand`` have its processes already; ``free_since`` says of each other one since when it is free.

    ``failed_at`` is when a process that was to take part has died last.
    """

    at_hand: int = 0
    free_since: tuple[datetime | None, ...] = ()
    failed_at: datetime | None = None


@dataclass(frozen=True)
class Size:
    """The size to have: ``recruits`` is how many nodes it takes beside the present ones, ``why`` says why it is smaller, or not larger."""

    to: int
    why: str | None = None
    recruits: int = 0
    again_in: timedelta | None = None


@dataclass(frozen=True)
class Wait:
    """What a job that has lost nodes waits for, ``since`` the first of them. ``is_warming``: nodes for all of them have been found.

    ``are_newcomers``: none of the lost has ever taken part.
    """

    since: datetime
    lost: str
    is_warming: bool
    are_newcomers: bool = False
    evidence_at: datetime | None = None


@dataclass(frozen=True)
class Course:
    """What a healthy job does about its size. ``starts`` are nodes for newcomers, ``leaves`` processes that are not needed any more where they are.

    ``recruited`` of the processes that play no rank are to be members soon, and no spares.
    """

    publish: Publish | None = None
    starts: tuple[NodeId, ...] = ()
    leaves: tuple[ProcessSeen, ...] = ()
    recruited: int = 0
    waits: str | None = None
    again_in: timedelta | None = None


STAYS = Course()


# ---------------------------------------------------------------------------------------------- sizes


def aim(elastic: Elasticity) -> int:
    """The size to have when there are enough nodes: what is wished, as far as it is left to the job."""
    bound = elastic.wish if elastic.ceiling is None else min(elastic.wish, elastic.ceiling)
    return elastic.policy.fitting(bound) or elastic.policy.least


def at_start(elastic: Elasticity, free: int) -> int | None:
    """How many of the free nodes the job starts with; None if there are too few for any of its sizes."""
    return elastic.policy.fitting(min(aim(elastic), free))


def choose(elastic: Elasticity, size: int, capacity: Capacity, patience: Patience, now: datetime) -> Size:
    """The size for a job that trains on ``size`` nodes, all of them well."""
    goal = aim(elastic)
    if size > goal:
        is_left = elastic.ceiling is not None and elastic.ceiling < elastic.wish
        return Size(goal, (elastic.ceiling_why if is_left else None) or f"size {goal} is asked for")
    if size == goal:
        return Size(size)
    until = quiet_until(elastic, capacity.failed_at, patience)
    if until is not None and until > now and not _is_asked(elastic):
        return Size(size, f"its size has changed or could not; it grows no sooner than {until:%H:%M:%S} UTC", again_in=until - now)
    ripe = sum(_is_ripe(elastic, since, now) for since in capacity.free_since)
    to = elastic.policy.fitting(min(goal, size + capacity.at_hand + ripe)) or size
    if to > size:
        return Size(to, recruits=to - size)
    unripe = [since + elastic.policy.scaling - now for since in capacity.free_since if not _is_ripe(elastic, since, now) and since]
    why = f"{_nodes(len(capacity.free_since))} free, not for long enough yet" if unripe else "no more nodes are free"
    return Size(size, why, again_in=soonest(min(unripe, default=None), patience.look))


def quiet_until(elastic: Elasticity, failed_at: datetime | None, patience: Patience) -> datetime | None:
    """Until when a job does not grow by itself: its size has changed, or growth has failed. None if neither ever was."""
    snooze = elastic.policy.snooze
    ends = [failed_at + snooze] if failed_at is not None and snooze else []
    if elastic.changes:
        newest = elastic.changes[-1]
        pause = min(patience.longest_stable, patience.stable * 2 ** min(_unrest(elastic.changes, patience) - 1, 20))
        was_undone = newest.after < newest.before and any(change.after > change.before for change in elastic.changes[-2:-1])
        ends.append(newest.at + max(pause, snooze if was_undone else pause))
    return max(ends, default=None)


def _unrest(changes: Sequence[SizeChange], patience: Patience) -> int:
    """How many of the newest changes came soon after one another."""
    count = 1
    for earlier, later in zip(reversed(changes[:-1]), reversed(changes), strict=False):
        if later.at - earlier.at > patience.calm:
            break
        count += 1
    return count


def _is_asked(elastic: Elasticity) -> bool:
    """Whether a command has not been answered by any change yet."""
    asked = elastic.wished_at
    return asked is not None and (not elastic.changes or elastic.changes[-1].at < asked)


# ---------------------------------------------------------------------------------------------- a job that is well


def course(
    seen: JobSeen, generation: GenerationSeen, alive: Sequence[ProcessSeen], idle: Sequence[ProcessSeen], now: datetime
) -> Course:
    """For a job whose newest generation has formed. ``alive`` are all members, ``idle`` the processes besides that count."""
    elastic = seen.elastic
    if elastic is None:
        return STAYS
    size = len(generation.members) // seen.processes_per_node
    crews = _crews(seen, idle)
    spare_nodes = min(seen.spares, len(crews))
    bad = placement.shunned(seen)
    usable = [node for node in placement.free_nodes(seen) if node.id not in bad and not placement.node_cools(seen, node, now)]
    free = usable[seen.spares - spare_nodes :]
    ready = sum(_is_ready(seen, crew) for crew in crews)
    at_hand = len(crews) - spare_nodes
    capacity = Capacity(at_hand, tuple(node.free_since for node in free), _failed_at(seen))
    right = choose(elastic, size, capacity, seen.patience, now)
    if right.to < size and generation.has_buddies and not generation.has_stepped:
        return Course(again_in=seen.patience.look)  # until its first vote not every replica is whole
    if right.to < size:
        to = _in_reach(elastic, size, right.to) if generation.has_buddies else right.to
        return Course(Publish(_kept(seen, alive, to), f"Shrinks from {size} to {_nodes(to)}: {right.why}."))
    leaves = _superfluous(seen, idle, (seen.spares + min(right.recruits, at_hand)) * seen.processes_per_node)
    if right.to == size:
        waits = f"Trains on {size} of {aim(elastic)} nodes: {right.why}." if right.why else None
        return Course(leaves=leaves, waits=waits, again_in=right.again_in)
    to = right.to
    if ready < right.recruits and _take_too_long(seen, idle, now):
        to = elastic.policy.fitting(size + ready) or size
    if size < to <= size + ready:
        news = [process.id for crew in _first(crews, to - size, lambda crew: _is_ready(seen, crew)) for process in crew]
        return Course(Publish((*generation.members, *news), f"Grows from {size} to {_nodes(to)}."), recruited=len(news))
    recruits = min(right.recruits, at_hand)
    ripe = [node.id for node in free if _is_ripe(elastic, node.free_since, now)][: right.recruits - recruits]
    waits = f"Trains on {size} of {aim(elastic)} nodes; grows to {right.to} when the newcomers are ready."
    return Course(
        starts=tuple(ripe), leaves=leaves, recruited=recruits * seen.processes_per_node, waits=waits, again_in=seen.patience.look
    )


def without_stranded(seen: JobSeen, alive: Sequence[ProcessSeen], now: datetime) -> Publish | None:
    """The generation without those whose nodes go in a moment, where nobody takes them over; None if nobody is, or the job must not be that small."""
    elastic = seen.elastic
    gone = {process.node for process in alive if _goes_now(seen, process, now)}
    if elastic is None or not gone:
        return None
    stay = [process for process in alive if process.node not in gone]
    size = len({process.node for process in alive})
    to = at_start(elastic, len(_crews(seen, stay)))
    if to is None or not any(process.reformed for process in stay):
        return None
    return Publish(
        _kept(seen, stay, to), f"{LEAVING_CAUSE}: nobody takes over from {_nodes(len(gone))}. Shrinks from {size} to {_nodes(to)}."
    )


# ---------------------------------------------------------------------------------------------- a job that has lost nodes


def without_lost(
    seen: JobSeen,
    generation: GenerationSeen,
    alive: Sequence[ProcessSeen],
    others: Sequence[ProcessSeen],
    wait: Wait,
    now: datetime,
) -> Publish | timedelta | None:
    """The generation of those that are left, or how long more are waited for; None where there are too few for any size.

    ``alive`` are the members that are left, ``others`` the processes besides that count.
    """
    elastic = seen.elastic
    if elastic is None:
        return None
    size = len(generation.members) // seen.processes_per_node
    left = len(alive) // seen.processes_per_node
    ready = [crew for crew in _crews(seen, others) if _is_ready(seen, crew)]
    to = elastic.policy.fitting(min(aim(elastic), size, left + len(ready)))
    if to is None or not (any(process.reformed for process in alive) or not seen.has_ever_formed):
        return None
    patience = elastic.policy.faulty * (2 if wait.is_warming else 1)
    rest = wait.since + patience - now
    if rest > timedelta(0) and left < aim(elastic) and not _is_failed_growth(elastic, generation, wait, size):
        return rest
    kept = _kept(seen, alive, min(to, left))
    news = [process.id for crew in ready[: to - left] for process in crew] if to > left else []
    why = f"Goes on with {_nodes(to)}" if to == size else f"Shrinks from {size} to {_nodes(to)}"
    return Publish((*kept, *news), f"{wait.lost} {why}.", wait.evidence_at)


def _is_failed_growth(elastic: Elasticity, generation: GenerationSeen, wait: Wait, size: int) -> bool:
    """Whether all that is lost is what the job was about to grow onto: then nothing is waited for."""
    newest = elastic.changes[-1] if elastic.changes else None
    grew = newest is not None and newest.before < newest.after == size
    return grew and not generation.is_formed and wait.are_newcomers


def first_size(seen: JobSeen, whole: int, since: datetime | None, now: datetime) -> int | None:
    """A smaller size for a job that forms and has lost nodes, or that is to be smaller; None to stay with the one that it has."""
    elastic = seen.elastic
    if elastic is None:
        return None
    goal = aim(elastic)
    if goal < seen.replicas:
        return goal
    if since is None or now - since < elastic.policy.faulty:
        return None
    to = at_start(elastic, whole)
    return to if to is not None and to < seen.replicas else None


def has_been_graceful(seen: JobSeen, generation: GenerationSeen, now: datetime) -> bool:
    """Whether the members have had their time to follow a change of size, if the generation is one: it may have been published again meanwhile."""
    if seen.elastic is None:
        return True
    first = generation
    for one in reversed(seen.generations):
        if one.members != generation.members:
            is_resize = len(one.members) != len(generation.members)
            return not is_resize or now - first.decided_at >= seen.elastic.policy.graceful
        first = one
    changes = seen.elastic.changes  # it has been published again so often that its beginning is out of sight
    return not changes or now - changes[-1].at >= seen.elastic.policy.graceful


# ---------------------------------------------------------------------------------------------- nodes and their processes


def _crews(seen: JobSeen, processes: Sequence[ProcessSeen]) -> list[list[ProcessSeen]]:
    """The processes of each node that has all of them, in the order in which the nodes are first named."""
    by_node: dict[NodeId, list[ProcessSeen]] = defaultdict(list)
    for process in processes:
        by_node[process.node].append(process)
    whole = [crew for crew in by_node.values() if len(crew) == seen.processes_per_node]
    return [sorted(crew, key=lambda process: process.local_rank) for crew in whole]


def _kept(seen: JobSeen, members: Sequence[ProcessSeen], to: int) -> tuple[ProcessId, ...]:
    """Those of the members, by rank, that stay when the job has ``to`` nodes' worth of them.

    On whole nodes that need not be left, and that hold the state, the lowest ranks first; or every second node, where the next one has what it holds.
    Ranks may have moved to nodes of others, so that few are whole: then parts of nodes stay. One who holds the state always does.
    """
    by_node: dict[NodeId, list[ProcessSeen]] = defaultdict(list)
    for process in members:
        by_node[process.node].append(process)
    is_odd = {node: seen.generations[-1].has_buddies and place % 2 == 1 for place, node in enumerate(by_node)}

    def worth(crew: Sequence[ProcessSeen]) -> tuple[bool, ...]:
        node, is_part = crew[0].node, len(crew) < seen.processes_per_node
        return seen.nodes[node].leave_why is not None, is_part, not all(process.reformed for process in crew), is_odd[node]

    ordered = [process for crew in sorted(by_node.values(), key=worth) for process in crew]
    wanted = to * seen.processes_per_node
    stay = ordered[:wanted]
    holder = next((process for process in ordered if process.reformed), None)
    if holder is not None and not any(process.reformed for process in stay):
        stay[-1] = holder
    ids = {process.id for process in stay}
    return tuple(process.id for process in members if process.id in ids)


def _in_reach(elastic: Elasticity, size: int, to: int) -> int:
    """The smallest size on the way to a smaller one at which every second node may stay; that one itself, if the job must not have any between."""
    return next((one for one in elastic.policy.sizes if max(to, size - size // 2) <= one < size), to)


def _superfluous(seen: JobSeen, idle: Sequence[ProcessSeen], wanted: int) -> tuple[ProcessSeen, ...]:
    """Processes on nodes that the job has no use for, once so many are ``wanted``: whole nodes stay before others, those that are ready first.

    Counted in processes, as spares are when they are started: or what one rule starts the other would give up, for ever.
    """
    by_node: dict[NodeId, list[ProcessSeen]] = defaultdict(list)
    for process in idle:
        by_node[process.node].append(process)
    training = {seen.by_id[member].node for member in seen.generations[-1].members}
    free = [crew for node, crew in by_node.items() if node not in training]
    free.sort(key=lambda crew: (len(crew) < seen.processes_per_node, not _is_ready(seen, crew), seen.nodes[crew[0].node].age))
    before = itertools.accumulate((len(crew) for crew in free), initial=0)
    return tuple(process for crew, kept in zip(free, before, strict=False) if kept >= wanted for process in crew)


def _first(crews: Sequence[list[ProcessSeen]], count: int, fits: Callable[[list[ProcessSeen]], bool]) -> list[list[ProcessSeen]]:
    return [crew for crew in crews if fits(crew)][:count]


def _is_ready(seen: JobSeen, crew: Sequence[ProcessSeen]) -> bool:
    node = seen.nodes[crew[0].node]
    return node.can_be_told and node.leave_why is None and all(process.state is ProcessState.READY for process in crew)


def _is_ripe(elastic: Elasticity, free_since: datetime | None, now: datetime) -> bool:
    """Whether a node has been free for long enough to grow onto it. A command does not wait."""
    return free_since is None or _is_asked(elastic) or now - free_since >= elastic.policy.scaling


def _take_too_long(seen: JobSeen, idle: Sequence[ProcessSeen], now: datetime) -> bool:
    warming = [process.state_since for process in idle if process.state is not ProcessState.READY]
    return bool(warming) and now - max(warming) >= seen.patience.start


def _failed_at(seen: JobSeen) -> datetime | None:
    """When the newest process that never took part has died. Those that were not needed any more have not failed."""
    died = [
        process.state_since
        for process in seen.processes
        if not process.is_alive and not process.reformed and process.failure != NOT_NEEDED
    ]
    return max(died, default=None)


def _goes_now(seen: JobSeen, process: ProcessSeen, now: datetime) -> bool:
    deadline = seen.nodes[process.node].leave_by
    return deadline is not None and seen.nodes[process.node].must_be_left and deadline - seen.patience.leaving <= now


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
