"""What to do about one update of a cluster's software. Pure: same snapshot, same actions.

Each group goes to its new release in batches; the next batch begins when every node of the last one serves again on that release and the
interval has passed. A node that comes to nothing on the new release, or an alarm that rings before the update is over, turns every group
back: a release belongs to the cluster as a whole. Nodes that were lost for other reasons are replaced by the cluster's plan, with hosts that
start from the release which the group wants, and are waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from models.ids import GroupId, LogicalId, NodeId
from models.node.states import NodeState
from models.software.states import AT_WORK, UpdateState
from workers.plans.batches import Batching, choose
from workers.plans.decision import Decision, soonest

LOOK_AGAIN = timedelta(seconds=2)
"""How often a batch that is under way is looked at; nobody is woken by its nodes."""
_TRIES = 3
"""Hosts that may come to nothing in a row, at one place: then something else is wrong than the release, and nobody waits for the place."""
_SERVING = (NodeState.READY, NodeState.SUSPECT)
_GONE = (NodeState.RELEASING, NodeState.GONE)


@dataclass(frozen=True)
class NodeSeen:
    """The newest node of a place. ``failures`` counts the hosts that came to nothing there in a row.

    ``is_obstructed``: its provider has no host for it now.
    """

    id: NodeId
    place: LogicalId
    state: NodeState
    image: str | None
    instance_type: str
    created_at: datetime
    is_wanted: bool = True
    is_busy: bool = False
    is_restarting: bool = False
    is_moving: bool = False
    """Asked to go to another group: it leaves this one, or stays if that is withdrawn."""
    is_obstructed: bool = False
    was_lost: bool = False
    failures: int = 0
    message: str | None = None

    @property
    def is_vacated(self) -> bool:
        return self.state in _GONE or not self.is_wanted

    def serves_on(self, image: str | None) -> bool:
        return self.state in _SERVING and self.is_wanted and not self.is_restarting and self.image == image

    @property
    def can_start(self) -> bool:
        """Whether it can be told to start from another image."""
        return self.state in _SERVING and self.is_wanted and not self.is_restarting and not self.is_moving

    def is_left_to(self, image: str | None) -> bool:
        """Whether there is no host for the place now, or none that lasts: the next one starts from this image, whenever that is."""
        return self.image == image and (self.is_obstructed or self.failures >= _TRIES)


@dataclass(frozen=True)
class Patching:
    """How nodes with work on them are treated.

    They are waited for until ``until`` if ``waits_for_idle``; ``as_one``: all at once or none. Otherwise they are drained within ``drain`` (None:
    the nodes' usual patience), and left as they are when that is over, unless ``is_forced``.
    """

    waits_for_idle: bool = False
    as_one: bool = False
    until: datetime | None = None
    drain: timedelta | None = None
    is_forced: bool = True


@dataclass(frozen=True)
class GroupSeen:
    id: GroupId
    name: str
    state: UpdateState
    image_from: str | None
    image_to: str
    forward: Batching = field(default_factory=Batching)
    back: Batching = field(default_factory=Batching)
    interval: timedelta = timedelta(0)
    patching: Patching = field(default_factory=Patching)
    batch: frozenset[LogicalId] = frozenset()
    skipped: frozenset[LogicalId] = frozenset()
    batch_done_at: datetime | None = None
    is_watched: bool = False
    """Whether alarms are named: then the end, too, waits for the interval."""
    target: int | None = None
    """How many nodes the group is to have; None: as many as it has places."""
    nodes: tuple[NodeSeen, ...] = ()

    @property
    def is_going_back(self) -> bool:
        return self.state is UpdateState.ROLLING_BACK

    @property
    def goal(self) -> str | None:
        return self.image_from if self.is_going_back else self.image_to

    @property
    def live(self) -> tuple[NodeSeen, ...]:
        """The nodes whose places are the group's: those that nobody told to go, and of the lost ones as many as will be filled again."""
        filling = tuple(node for node in self.nodes if not node.is_vacated)
        lost = [node for node in self.nodes if node.is_vacated and node.was_lost and not node.is_moving]
        room = len(lost) if self.target is None else max(0, self.target - len(filling))
        return (*filling, *sorted(lost, key=lambda node: node.place not in self.batch)[:room])

    @property
    def left(self) -> tuple[NodeSeen, ...]:
        """Those that are not at the goal, and are not to be left as they are."""
        return tuple(
            node
            for node in self.live
            if not (node.serves_on(self.goal) or node.is_left_to(self.goal)) and node.place not in self.skipped
        )

    @property
    def stale(self) -> tuple[NodeSeen, ...]:
        """Hosts that nobody has got yet, and that were asked for with another release."""
        return tuple(
            node for node in self.nodes if node.state is NodeState.REQUESTED and node.is_wanted and node.image != self.goal
        )


@dataclass(frozen=True)
class UpdateSeen:
    """``ringing`` maps the update's alarms that ring to their reasons."""

    groups: tuple[GroupSeen, ...]
    ringing: tuple[tuple[str, str], ...] = ()
    cluster_is_going: bool = False
    turned_because: str | None = None


@dataclass(frozen=True)
class Begin:
    group: GroupId
    why: str


@dataclass(frozen=True)
class Hold:
    """Nodes take no new work until they are through."""

    group: GroupId
    nodes: tuple[NodeId, ...]
    why: str


@dataclass(frozen=True)
class Renew:
    """Hosts that nobody has got yet are asked for anew, with the release that the group wants now."""

    group: GroupId
    nodes: tuple[NodeId, ...]
    why: str


@dataclass(frozen=True)
class StartBatch:
    """``nodes`` are to start from ``image``, their jobs having left within ``drain``; their places are the batch."""

    group: GroupId
    nodes: tuple[NodeId, ...]
    places: tuple[LogicalId, ...]
    image: str | None
    drain: timedelta | None
    is_forced: bool
    why: str


@dataclass(frozen=True)
class FinishBatch:
    group: GroupId
    why: str


@dataclass(frozen=True)
class Skip:
    group: GroupId
    places: tuple[LogicalId, ...]
    why: str


@dataclass(frozen=True)
class TurnBack:
    group: GroupId
    why: str


@dataclass(frozen=True)
class End:
    group: GroupId
    new: UpdateState
    why: str


@dataclass(frozen=True)
class Close:
    why: str


Action = Begin | Hold | Renew | StartBatch | FinishBatch | Skip | TurnBack | End | Close


def plan(seen: UpdateSeen, now: datetime) -> Decision[Action]:
    """What to do about one update."""
    if seen.cluster_is_going:
        return Decision((*_give_up(seen), Close("The cluster is being deleted.")))
    trouble = None if seen.turned_because else _trouble(seen)
    if trouble is not None:
        return Decision(_turn(seen, trouble), timedelta(0))
    actions: list[Action] = []
    again: timedelta | None = None
    for group in seen.groups:
        steps, rest = _step(group, now)
        actions += steps
        again = soonest(again, rest)
    if actions:
        return Decision(tuple(actions), timedelta(0))
    if all(group.state not in AT_WORK for group in seen.groups):
        return Decision((Close(_outcome(seen)),))
    return Decision((), soonest(LOOK_AGAIN, again))


def _give_up(seen: UpdateSeen) -> tuple[Action, ...]:
    return tuple(
        End(group.id, UpdateState.FAILED, "The cluster is being deleted.") for group in seen.groups if group.state in AT_WORK
    )


def _trouble(seen: UpdateSeen) -> str | None:
    """Why the update cannot go on."""
    for name, reason in seen.ringing:
        return f"Alarm {name} rings: {reason}"
    for group in seen.groups:
        for node in group.live:
            if group.state is UpdateState.IN_PROGRESS and node.place in group.batch and _has_failed(node):
                return f"A node of instance group {group.name} failed on {group.image_to}: {node.message or 'it did not come to serve'}"
    return None


def _has_failed(node: NodeSeen) -> bool:
    return node.failures > 0 and node.state is not NodeState.READY


def _turn(seen: UpdateSeen, why: str) -> tuple[Action, ...]:
    going = (UpdateState.PENDING, UpdateState.IN_PROGRESS, UpdateState.SUCCEEDED)
    return tuple(TurnBack(group.id, why) for group in seen.groups if group.state in going)


def _step(group: GroupSeen, now: datetime) -> tuple[list[Action], timedelta | None]:
    if group.state is UpdateState.PENDING:
        why = f"{len(group.left)} nodes are to go from {group.image_from or 'the former release'} to {group.image_to}."
        held = [node.id for node in group.left] if group.patching.waits_for_idle else []
        hold = [Hold(group.id, tuple(held), "They are patched as they become idle.")] if held else []
        return [Begin(group.id, why), *hold], None
    if group.state not in (UpdateState.IN_PROGRESS, UpdateState.ROLLING_BACK):
        return [], None
    if group.stale:
        return [Renew(group.id, tuple(node.id for node in group.stale), f"The group goes to {group.goal}.")], None
    if group.batch:
        return _of_batch(group), LOOK_AGAIN
    rest = _rest(group, now)
    if not group.left:
        return _finish(group, rest)
    if rest > timedelta(0):
        return [], rest
    return _next(group, now)


def _of_batch(group: GroupSeen) -> list[Action]:
    """A batch under way: it ends when each of its places serves on the goal, has no node any more, or is left as it is."""
    here = [node for node in group.live if node.place in group.batch]
    if group.is_going_back and any(node.failures >= _TRIES for node in here):
        return [End(group.id, UpdateState.FAILED, f"Its nodes fail on {group.image_from}, too: {_words(here)}")]
    kept = [node for node in here if node.state is NodeState.READY and not node.is_restarting and node.image != group.goal]
    if kept and not group.patching.is_forced:
        return [Skip(group.id, tuple(node.place for node in kept), "Their jobs did not leave in time.")]
    missed = [node for node in here if node.can_start and node.image != group.goal]
    through = [node for node in here if node.serves_on(group.goal) or node.is_left_to(group.goal)]
    if len(through) + len(missed) == len(here):  # a later batch takes those that could not be told when this one began
        return [FinishBatch(group.id, f"{len(through)} nodes serve on {group.goal}, or will when there is a host for them.")]
    return []


def _finish(group: GroupSeen, rest: timedelta) -> tuple[list[Action], timedelta | None]:
    """Nothing is left to do. With alarms to watch, the end waits as a next batch would."""
    if group.is_watched and not group.is_going_back and rest > timedelta(0):
        return [], rest
    if group.is_going_back:
        return [End(group.id, UpdateState.ROLLED_BACK, f"Every node runs {group.image_from or 'the former release'} again.")], None
    left_out = f"; {len(group.skipped)} were left as they are" if group.skipped else ""
    return [
        End(group.id, UpdateState.SUCCEEDED, f"{len(group.live) - len(group.skipped)} nodes run {group.image_to}{left_out}.")
    ], None


def _next(group: GroupSeen, now: datetime) -> tuple[list[Action], timedelta | None]:
    ready = [node for node in group.left if node.can_start]
    if group.patching.waits_for_idle and not group.is_going_back:
        ready, out = _idle(group, ready, now)
        if out:
            return out, None
    if not ready:
        return [], LOOK_AGAIN  # the rest are on their way: started by the cluster's plan, or coming back
    batching = group.back if group.is_going_back else group.forward
    chosen = choose(ready, batching.size(len(group.live)))
    why = f"{len(chosen)} of {len(group.left)} nodes go to {group.goal or 'the former release'}."
    is_forced = group.patching.is_forced or group.is_going_back
    ids, places = tuple(node.id for node in chosen), tuple(node.place for node in chosen)
    return [StartBatch(group.id, ids, places, group.goal, group.patching.drain, is_forced, why)], None


def _idle(group: GroupSeen, ready: list[NodeSeen], now: datetime) -> tuple[list[NodeSeen], list[Action]]:
    """The nodes without work, or who is left out because the wait is over."""
    idle = [node for node in ready if not node.is_busy]
    is_over = group.patching.until is not None and now >= group.patching.until
    if group.patching.as_one and len(idle) < len(group.left) and not is_over:
        return [], []
    if is_over and len(idle) < len(group.left):
        late = group.left if group.patching.as_one else [node for node in group.left if node not in idle]
        if late and not (idle and not group.patching.as_one):
            return [], [Skip(group.id, tuple(node.place for node in late), "They did not become idle in time.")]
    return idle, []


def _rest(group: GroupSeen, now: datetime) -> timedelta:
    if group.batch_done_at is None or group.is_going_back:
        return timedelta(0)
    return group.batch_done_at + group.interval - now


def _outcome(seen: UpdateSeen) -> str:
    if seen.turned_because is None:
        return "Every group runs its new release."
    failed = [group.name for group in seen.groups if group.state is UpdateState.FAILED]
    if failed:
        return f"The update was rolled back, which failed for {', '.join(failed)}: {seen.turned_because}"
    return f"The update was rolled back: {seen.turned_because}"


def _words(nodes: Sequence[NodeSeen]) -> str:
    return next((node.message for node in nodes if node.message), "they do not come to serve")
