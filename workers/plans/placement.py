"""Where a job's processes can go. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from models.ids import NodeId
from models.job.states import ProcessState
from workers.plans import slow
from workers.plans.job_seen import JobSeen, NodeSeen, ProcessSeen, Slot

_FREE_DEATHS = 2
_LONGEST_COOLING = timedelta(seconds=30)


def free_nodes(seen: JobSeen) -> list[NodeSeen]:
    """Nodes that nobody's processes hold and that this job may use, oldest first; without those of spare pools."""
    return [node for node in _unheld(seen) if not node.is_spare]


def spare_nodes(seen: JobSeen) -> list[NodeSeen]:
    """The same of spare pools: for what was lost, when no other node is free."""
    return [node for node in _unheld(seen) if node.is_spare]


def _unheld(seen: JobSeen) -> list[NodeSeen]:
    held = {process.node for process in seen.alive}
    usable = [
        node
        for node in seen.nodes.values()
        if node.can_be_told and not node.is_held and node.id not in held and (not seen.groups or node.group in seen.groups)
    ]
    return sorted(usable, key=lambda node: node.age)


def slots_of(seen: JobSeen, nodes: Sequence[NodeSeen], now: datetime) -> list[Slot]:
    """Every slot of those of the nodes that the job does not shun."""
    bad = shunned(seen)
    usable = [node for node in nodes if node.id not in bad]
    slots = [(node.id, local_rank) for node in usable for local_rank in range(seen.processes_per_node)]
    return [slot for slot in slots if not _cools(seen, slot, now)]


def vacated_slots(seen: JobSeen, now: datetime, given_up: frozenset[str]) -> list[Slot]:
    """Slots whose process has died while their node serves on: everything that a new process imports is warm there.

    The slot of a process that is being given up is vacated too: the assignment that starts the new one ends the old one.
    """
    taken = {process.slot for process in seen.alive if process.id not in given_up}
    bad = shunned(seen)
    left = {process.slot for process in seen.processes if process.slot not in taken and process.node not in bad}
    usable = [slot for slot in left if _serves_us(seen, slot[0]) and not _cools(seen, slot, now)]
    return sorted(usable, key=lambda slot: (seen.nodes[slot[0]].age, slot[1]))


def node_cools(seen: JobSeen, node: NodeSeen, now: datetime) -> bool:
    """Whether any of its slots is left alone for a while."""
    return any(_cools(seen, (node.id, local_rank), now) for local_rank in range(seen.processes_per_node))


def cooling(seen: JobSeen, now: datetime) -> timedelta | None:
    """When the first slot that is left alone for a while may be used again; None if there is none."""
    rests = [_rest(seen, slot, now) for slot in {process.slot for process in seen.processes}]
    return min((rest for rest in rests if rest > timedelta(0)), default=None)


def substitutes(seen: JobSeen, dead: list[ProcessSeen], idle: list[ProcessSeen]) -> dict[str, ProcessSeen]:
    """Who plays the ranks of the dead, by the id of the dead; those for whom nobody is left are missing.

    The ranks of one lost node go to one spare node as far as possible, and a local rank stays what it was: neighbours stay neighbours. Whoever stands
    by on a slow node comes last.
    """
    bad = slow.slow_nodes(seen)
    left = sorted(idle, key=lambda process: (seen.nodes[process.node].age, process.local_rank, process.id))
    chosen: dict[str, ProcessSeen] = {}
    moved_to: dict[NodeId, NodeId] = {}
    for process in dead:
        target = moved_to.get(process.node)
        left.sort(
            key=lambda one: (one.node in bad, one.slot != process.slot, one.node != target, one.local_rank != process.local_rank)
        )
        if not left:
            break
        chosen[process.id] = left.pop(0)
        moved_to.setdefault(process.node, chosen[process.id].node)
    return chosen


def shunned(seen: JobSeen) -> frozenset[NodeId]:
    """Nodes that this job rather leaves: several of its processes have come to grief there, and hardly any elsewhere, so it is not the script.

    So are those where a rank was slow, in a job that has slow ranks replaced. Nobody shuns the last node there is to go to. The other way round, what
    fails wherever it runs is the script's fault, and no node is left for it.
    """
    grief = Counter(process.node for process in seen.processes if _came_to_grief(process))
    bad = {node for node, count in grief.items() if count > _FREE_DEATHS and count > 2 * (grief.total() - count)}
    bad |= slow.slow_nodes(seen)
    others = [node for node in _unheld(seen) if node.id not in bad]
    return frozenset(bad) if others else frozenset()


def _came_to_grief(process: ProcessSeen) -> bool:
    """Died of itself or was given up because it hung: not with its node, and not because it was no longer needed."""
    died = process.state is ProcessState.EXITED and (process.exit_code not in (None, 0) or process.signal is not None)
    return died or (process.state is ProcessState.LOST and process.hang is not None)


def _serves_us(seen: JobSeen, node_id: NodeId) -> bool:
    node = seen.nodes.get(node_id)
    return node is not None and node.can_be_told and not node.is_held


def _cools(seen: JobSeen, slot: Slot, now: datetime) -> bool:
    return _rest(seen, slot, now) > timedelta(0)


def _rest(seen: JobSeen, slot: Slot, now: datetime) -> timedelta:
    """How long a slot is left alone: ever longer, once several processes have died there that user code is not to blame for."""
    deaths = [
        process for process in seen.processes if process.slot == slot and process.state in (ProcessState.EXITED, ProcessState.LOST)
    ]
    if len(deaths) <= _FREE_DEATHS:
        return timedelta(0)
    latest = max(process.state_since for process in deaths)
    pause = min(_LONGEST_COOLING, timedelta(seconds=2 ** min(len(deaths) - _FREE_DEATHS, 10)) / 2)
    return latest + pause - now
