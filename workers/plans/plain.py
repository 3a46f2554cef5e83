"""What to do about a job whose scripts know nothing of generations: ``recovery: process``. Pure.

Each generation is made of new processes, which learn their rank from the environment. They are held by their agents, ready to be forked, until they are
members; so "ready" means here that the node has nothing left of the generation before. When a member dies, or another size is decided, all others
end (SIGTERM, the job's grace, SIGKILL) and the next generation starts; where it goes on is the script's own affair.

* TRAINING means: the newest generation runs. Whatever ends it moves the job on in the same decision in which its members are given up and their
  successors are wanted. So an end is counted once, and no other job finds the nodes free meanwhile.
* Only what user code began counts as a restart: a rank that fails because a peer was killed, or lost with its node, is not to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from models.ids import NodeId, ProcessId
from models.job.states import JobState, ProcessState
from workers.plans import elastic, placement, queueing
from workers.plans.decision import Decision, soonest
from workers.plans.evidence import Casualties, casualties, evidence_at, is_fault, told_fault
from workers.plans.hangs import hanging
from workers.plans.job_seen import (
    Action,
    Await,
    CountRestarts,
    Form,
    GenerationSeen,
    GiveUp,
    JobSeen,
    Move,
    ProcessSeen,
    Publish,
    Resize,
    Say,
    Slot,
    Start,
)

_POLL = timedelta(seconds=5)
_LATE = timedelta(seconds=10)
_AGAIN = "User code has failed once more."
_WAITS = " Then: "
"""Between why the last generation ended and what the next one waits for."""
_SIGKILL = 9
_SHORT = timedelta(seconds=60)
"""A generation that ends sooner than this has not got anywhere: the next one waits, twice as long each time."""
_LONGEST_PAUSE = timedelta(seconds=60)
_MOST_KILLS = 10
"""So many generations in a row, killed as soon as they had begun: whoever kills them, the kernel for want of memory most likely, will again."""


def plan(seen: JobSeen, now: datetime) -> Decision[Action]:
    """For a job that has nodes and is not to stop."""
    if hung := hanging(seen).failure:
        return Decision((Move(JobState.FAILED, hung),))
    patient = replace(seen.patience, start=seen.patience.start + seen.grace)  # what ran there before may take its grace
    seen = replace(seen, patience=patient)
    lost = casualties(seen, now)
    generation = seen.generation
    if generation is not None and seen.state is JobState.TRAINING:
        decision = _watch(seen, generation, lost, now)
    else:
        decision = _gather(seen, lost, now)
    return Decision(queueing.with_awaits(seen, decision.actions), soonest(decision.again_in, lost.again_in))


# ---------------------------------------------------------------------------------------------- a generation that runs


def _watch(seen: JobSeen, generation: GenerationSeen, lost: Casualties, now: datetime) -> Decision[Action]:
    members = [seen.by_id[process] for process in generation.members]
    done = [process for process in members if process.state is ProcessState.FINISHED or _left_well(process)]
    if len(done) == len(members):
        return Decision((Move(JobState.SUCCEEDED, "Every process has ended with exit code 0."),))
    counted = {process.id for process in lost.alive}
    dead = [process for process in members if process.id not in counted and process not in done]
    if dead:
        return _failed(seen, generation, dead, lost, now)
    size = _size(seen, generation, lost, now)
    change = None if done else _leaves(seen, generation, lost, now) or _resizes(seen, generation, size, lost, now)
    if change is not None:
        return change
    is_formed = all(process.has_started for process in members)
    form = (Form(generation.number, "All its processes run."),) if is_formed and not generation.is_formed else ()
    recruits = size.recruits
    starts = () if done else _start(seen, lost, seen.spares + recruits, frozenset(process.node for process in members))
    extra = _superfluous(seen, lost, 0 if done else seen.spares + recruits)
    says = _say(seen, _told_size(seen, generation, size)) if seen.elastic is not None and size.why else ()
    if done and now - max(process.state_since for process in done) >= _LATE:
        says = _say(seen, _told_end(members, done))
    return Decision((*_given_up(lost), *form, *extra, *starts, *says), soonest(_POLL, size.again_in))


def _told_end(members: Sequence[ProcessSeen], done: Sequence[ProcessSeen]) -> str:
    """Nobody is ended for that: a script may write its results as long as it likes."""
    late = [f"rank {rank} (process {one.id})" for rank, one in enumerate(members) if one not in done]
    return f"{len(done)} of {len(members)} processes have ended with exit code 0; waits for the end of {', '.join(late)}."


def _failed(
    seen: JobSeen, generation: GenerationSeen, dead: list[ProcessSeen], lost: Casualties, now: datetime
) -> Decision[Action]:
    """A member is dead: all end. A failure is given a moment in which its cause may become known, unless everybody is dead anyway."""
    fault = _to_blame(seen, generation, dead, lost)
    if fault is not None:
        rest = fault.state_since + seen.patience.fault - now
        if rest > timedelta(0) and len(dead) < len(generation.members):
            return Decision(_given_up(lost), rest)
        if seen.restarts >= seen.max_restarts:
            rank = generation.members.index(fault.id)
            why = f"Rank {rank} of generation {generation.number} failed first, and its max_restarts ({seen.max_restarts}) are used up."
            return Decision((CountRestarts(seen.restarts + 1, _AGAIN), Move(JobState.FAILED, f"{why}\n{told_fault(fault)}")))
    kills = _kills_in_a_row(seen)
    if kills >= _MOST_KILLS:
        why = f"{kills} generations in a row were killed by signal 9 within {_SHORT.seconds} s of their start: is there enough memory?"
        return Decision((Move(JobState.FAILED, why),))
    named = [fault] if fault is not None else dead
    names = ", ".join(f"rank {generation.members.index(one.id)} ({lost.why(one)})" for one in named)
    count = (CountRestarts(seen.restarts + 1, _AGAIN),) if fault is not None else ()
    return _ended(seen, generation, lost, Move(JobState.RECOVERING, f"Lost {names}; all processes start anew."), now, also=count)


def _to_blame(seen: JobSeen, generation: GenerationSeen, dead: list[ProcessSeen], lost: Casualties) -> ProcessSeen | None:
    """Whose user code failed first; None if somebody was killed, hangs, or is lost with a node: the others fail because of that."""
    if any(_is_taken(seen, seen.by_id[process], lost) for process in generation.members):
        return None
    raised = [process for process in dead if is_fault(process)]
    return min(raised, key=lambda process: (process.state_since, generation.members.index(process.id)), default=None)


def _is_taken(seen: JobSeen, process: ProcessSeen, lost: Casualties) -> bool:
    node = seen.nodes.get(process.node)
    if process.id in lost.doomed or node is None or node.is_going or node.stream_lost_at is not None:
        return True
    is_killed = process.state is ProcessState.EXITED and process.exit_code is None and not is_fault(process)
    return is_killed or process.state is ProcessState.LOST


def _ended(
    seen: JobSeen, generation: GenerationSeen, lost: Casualties, change: Move, now: datetime, *, also: Sequence[Action] = ()
) -> Decision[Action]:
    """The generation's last members are given up, and its successors wanted at once, in the same places if those are good."""
    over = tuple(
        GiveUp(process.id, f"generation {generation.number} ends", is_planned=True)
        for process in lost.alive
        if process.id in generation.members
    )
    gone = {action.process for action in (*_given_up(lost), *over)}
    left = tuple(replace(one, state=ProcessState.LOST, state_since=now) if one.id in gone else one for one in seen.processes)
    sizes = [action.replicas for action in also if isinstance(action, Resize)]
    after = replace(seen, state=change.new, processes=left, why=change.why, replicas=sizes[0] if sizes else seen.replicas)
    rest = _gather(after, Casualties(tuple(one for one in left if one.is_alive)), now)
    return Decision((*_given_up(lost), *also, change, *over, *rest.actions), rest.again_in)


def _leaves(seen: JobSeen, generation: GenerationSeen, lost: Casualties, now: datetime) -> Decision[Action] | None:
    """Nodes that are to be left by a time are left as soon as others are ready. Without any, the script works on until the deadline."""
    here = frozenset(seen.by_id[process].node for process in generation.members)
    going = sorted(node for node in here if seen.nodes[node].must_be_left)
    if not going:
        return None
    if _ready(seen, lost) >= len(going):
        why = f"Leaves {_nodes(len(going))}: {seen.nodes[going[0]].leave_why}. All processes start anew."
        return _ended(seen, generation, lost, Move(JobState.RECOVERING, why), now)
    starts = _start(seen, lost, len(going) + seen.spares, here, needed=len(going))
    says = _say(seen, f"Is to leave {_nodes(len(going))}, and waits for others that take over.")
    return Decision((*_given_up(lost), *starts, *says), _POLL)


def _resizes(
    seen: JobSeen, generation: GenerationSeen, size: elastic.Size, lost: Casualties, now: datetime
) -> Decision[Action] | None:
    """Another size ends the generation: a smaller one at once, a larger one when the newcomers are ready."""
    have = len(generation.members) // seen.processes_per_node
    if size.to == have or (size.to > have and _ready(seen, lost) < size.recruits):
        return None
    why = f"Shrinks from {have} to {size.to} nodes: {size.why}." if size.to < have else f"Grows from {have} to {size.to} nodes."
    change = Move(JobState.RESIZING, f"{why} All processes start anew.")
    return _ended(seen, generation, lost, change, now, also=(Resize(size.to, why),))


def _size(seen: JobSeen, generation: GenerationSeen, lost: Casualties, now: datetime) -> elastic.Size:
    have = len(generation.members) // seen.processes_per_node
    if seen.elastic is None or not generation.is_formed:
        return elastic.Size(have)
    crews = len(_crews(seen, _idle(seen, lost)))
    spare = min(seen.spares, crews)
    free = placement.free_nodes(seen)[seen.spares - spare :]
    capacity = elastic.Capacity(crews - spare, tuple(node.free_since for node in free))
    return elastic.choose(seen.elastic, have, capacity, seen.patience, now)


def _told_size(seen: JobSeen, generation: GenerationSeen, size: elastic.Size) -> str:
    have = len(generation.members) // seen.processes_per_node
    aim = elastic.aim(seen.elastic) if seen.elastic is not None else have
    if size.to > have:
        return f"Trains on {have} of {aim} nodes; grows to {size.to} when the newcomers are ready."
    return f"Trains on {have} of {aim} nodes: {size.why}."


def _ready(seen: JobSeen, lost: Casualties) -> int:
    """How many nodes are ready to take part that do not."""
    return sum(_is_ready(seen, node, crew) for node, crew in _crews(seen, _idle(seen, lost)).items())


# ---------------------------------------------------------------------------------------------- the next one


def _gather(seen: JobSeen, lost: Casualties, now: datetime) -> Decision[Action]:
    """Wants processes on whole nodes, and publishes the next generation when enough of them are ready and the pause is over."""
    given_up = (*_given_up(lost), *_stale(seen, lost))
    crews = _crews(seen, _idle(seen, lost))
    to = elastic.first_size(seen, len(crews), seen.awaits_since, now)
    if to is not None:
        return Decision((*given_up, Resize(to, f"Goes on with {to} nodes instead of {seen.replicas}.")), timedelta(0))
    rest = max(_pause(seen) - (now - _ended_at(seen, now)), _leaving(seen, now))
    ready = [node for node, crew in crews.items() if _is_ready(seen, node, crew)]
    if len(ready) >= seen.replicas and rest <= timedelta(0):
        why = _cause(seen) or f"{seen.replicas} nodes are ready."
        publish = Publish(_members(seen, ready, crews), why, _evidence(seen))
        return Decision((*given_up, publish, Move(JobState.TRAINING, why)), timedelta(0))
    starts = _start(seen, lost, seen.replicas + seen.spares, frozenset(), needed=seen.replicas)
    missing = seen.replicas - len(crews.keys() | {node for action in starts for node, _ in action.places})
    awaits = (Await(missing, f"Waits for {missing} nodes."),) if missing > 0 else ()
    away = queueing.gives_back(seen, now) if missing > 0 and seen.state is not JobState.RESIZING else None
    if away is not None:
        return Decision((*given_up, *queueing.withdrawn(seen, away)), _POLL)
    waits = f"{len(ready)} of {seen.replicas} nodes are ready." + (f" {missing} more are not there." if missing > 0 else "")
    if rest > timedelta(0) and len(ready) >= seen.replicas:
        is_leaving = _leaving(seen, now) > timedelta(0)
        waits = (
            "the one before leaves its nodes."
            if is_leaving
            else f"a pause of {_pause(seen).seconds} s, as none has lasted for long."
        )
    cause = _cause(seen)
    said = _say(seen, f"{cause}{_WAITS}{waits}" if cause else waits)
    return Decision((*given_up, *starts, *awaits, *said), soonest(_POLL, rest if rest > timedelta(0) else None))


def _cause(seen: JobSeen) -> str | None:
    """Why the generation before ended, as it was said then; None if there was none."""
    return (seen.why or "").partition(_WAITS)[0] if seen.generation is not None else None


def _evidence(seen: JobSeen) -> datetime | None:
    if seen.generation is None:
        return None
    members = [seen.by_id[process] for process in seen.generation.members]
    return evidence_at(seen, seen.generation, [process for process in members if not _left_well(process)])


def _stale(seen: JobSeen, lost: Casualties) -> tuple[GiveUp, ...]:
    """Members of a generation that is over. What ended it has given them up; this is for those that were read before."""
    idle = _idle(seen, lost)
    return tuple(GiveUp(one.id, "its generation has ended", is_planned=True) for one in lost.alive if one not in idle)


def _members(seen: JobSeen, ready: Sequence[NodeId], crews: Mapping[NodeId, list[ProcessSeen]]) -> tuple[ProcessId, ...]:
    """Ranks ordered by node, then by local rank. Nodes of the generation before go first: what they need is warm there."""
    before = _nodes_before(seen)
    chosen = sorted(ready, key=lambda node: (node not in before, seen.nodes[node].age))[: seen.replicas]
    ordered = sorted(chosen, key=lambda node: seen.nodes[node].age)
    return tuple(one.id for node in ordered for one in sorted(crews[node], key=lambda process: process.local_rank))


def _pause(seen: JobSeen) -> timedelta:
    """Before the next generation, when several in a row have ended soon after their start."""
    count = 0
    for generation in reversed(seen.generations):
        ended = _ends(seen, generation)
        if not ended or min(one.state_since for one in ended) - generation.decided_at >= _SHORT:
            break
        count += 1
    return timedelta(0) if count <= 1 else min(_LONGEST_PAUSE, timedelta(seconds=2 ** (count - 2)))


def _leaving(seen: JobSeen, now: datetime) -> timedelta:
    """How long those of the generation before that have been given up may still take to end. Nobody waits for nodes that nobody hears."""
    members = [seen.by_id[process] for process in seen.generation.members] if seen.generation else []
    left = [
        one.state_since + seen.grace + seen.patience.halt - now
        for one in members
        if one.state is ProcessState.LOST and one.exit_code is None and one.signal is None and _is_heard(seen, one)
    ]
    return max(left, default=timedelta(0))


def _is_heard(seen: JobSeen, process: ProcessSeen) -> bool:
    node = seen.nodes.get(process.node)
    return node is not None and not node.is_going and node.stream_lost_at is None


def _kills_in_a_row(seen: JobSeen) -> int:
    count = 0
    for generation in reversed(seen.generations):
        killed = [one for one in _ends(seen, generation) if one.signal == _SIGKILL]
        if not killed or min(one.state_since for one in killed) - generation.decided_at >= _SHORT:
            break
        count += 1
    return count


def _ends(seen: JobSeen, generation: GenerationSeen) -> list[ProcessSeen]:
    """Members that have ended by themselves, and not well."""
    members = [seen.by_id[process] for process in generation.members]
    return [one for one in members if one.state is ProcessState.EXITED and not _left_well(one)]


def _ended_at(seen: JobSeen, now: datetime) -> datetime:
    members = [seen.by_id[process] for process in seen.generation.members] if seen.generation else []
    return max((process.state_since for process in members if not process.is_alive), default=now)


# ---------------------------------------------------------------------------------------------- nodes and their processes


def _idle(seen: JobSeen, lost: Casualties) -> list[ProcessSeen]:
    """Processes that are held for a generation to come."""
    members = seen.generation.members if seen.generation else ()
    return [process for process in lost.alive if process.id not in members]


def _crews(seen: JobSeen, processes: Sequence[ProcessSeen]) -> dict[NodeId, list[ProcessSeen]]:
    """By node, where all processes of the node are among them, and it need not be left; oldest node first."""
    by_node: dict[NodeId, list[ProcessSeen]] = defaultdict(list)
    for process in sorted(processes, key=lambda one: (seen.nodes[one.node].age, one.id)):
        by_node[process.node].append(process)
    return {
        node: crew
        for node, crew in by_node.items()
        if len(crew) == seen.processes_per_node and not seen.nodes[node].must_be_left and not seen.nodes[node].is_going
    }


def _is_ready(seen: JobSeen, node: NodeId, crew: Sequence[ProcessSeen]) -> bool:
    return seen.nodes[node].can_be_told and all(process.state is ProcessState.READY for process in crew)


def _start(seen: JobSeen, lost: Casualties, wanted: int, besides: frozenset[NodeId], *, needed: int = 0) -> tuple[Start, ...]:
    """Processes to be held, until so many nodes have all of theirs. ``besides`` are nodes where a generation runs.

    ``needed`` of those wanted may be nodes of spare pools.
    """
    here: dict[NodeId, set[int]] = defaultdict(set)
    for process in _idle(seen, lost):
        if not seen.nodes[process.node].must_be_left:
            here[process.node].add(process.local_rank)
    ranks = range(seen.processes_per_node)
    places: list[Slot] = [
        (node, rank) for node, have in here.items() for rank in ranks if rank not in have and seen.nodes[node].can_be_told
    ]
    before = _nodes_before(seen)
    free, pooled = (
        sorted(
            (node for node in nodes(seen) if node.id not in besides and not node.must_be_left),
            key=lambda node: (node.id not in before, node.age),
        )
        for nodes in (placement.free_nodes, placement.spare_nodes)
    )
    chosen = free[: max(0, wanted - len(here))]
    chosen += pooled[: max(0, needed - len(here) - len(chosen))]
    places += [(node.id, rank) for node in chosen for rank in ranks]
    return (Start(tuple(places), f"{wanted} nodes are to be ready for the next generation."),) if places else ()


def _superfluous(seen: JobSeen, lost: Casualties, wanted: int) -> tuple[GiveUp, ...]:
    """What is held on nodes beyond the wanted ones; those that are ready stay first."""
    crews = _crews(seen, _idle(seen, lost))
    order = sorted(crews, key=lambda node: (not _is_ready(seen, node, crews[node]), seen.nodes[node].age))
    return tuple(GiveUp(one.id, elastic.NOT_NEEDED, is_planned=True) for node in order[wanted:] for one in crews[node])


def _nodes_before(seen: JobSeen) -> frozenset[NodeId]:
    return frozenset(seen.by_id[process].node for process in seen.generation.members) if seen.generation else frozenset()


def _given_up(lost: Casualties) -> tuple[GiveUp, ...]:
    doomed = tuple(GiveUp(process, why) for process, why in lost.doomed.items())
    return (*doomed, *(GiveUp(process, why, is_planned=True) for process, why in lost.released.items()))


def _left_well(process: ProcessSeen) -> bool:
    return process.state is ProcessState.EXITED and process.exit_code == 0


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _say(seen: JobSeen, why: str) -> tuple[Say, ...]:
    return (Say(why),) if seen.why != why else ()
