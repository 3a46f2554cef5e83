"""What to do about one group of a cluster. Pure: same snapshot, same actions.

Vacant places are filled and surplus nodes are let go. The place of a node that its provider takes is vacant at once. A flexible group has types in an order of preference: every node is first asked for as the
first of them, and as the next one when there is no capacity. A group that has a minimum and misses it goes back to what it was.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from models.cluster.states import ClusterState, GroupState
from models.node.states import NodeState
from workers.plans.cluster_seen import (
    Action,
    ClusterSeen,
    GroupSeen,
    LetGo,
    MissMinimum,
    MoveGroup,
    NodeSeen,
    PutOff,
    TryType,
    WantNode,
)

MINIMUM_WITHIN = timedelta(hours=3)
"""How long a group may take to have its minimum, as on HyperPod."""
_FIRST_RETRY = timedelta(seconds=2)
_LONGEST_RETRY = timedelta(minutes=5)
_PRICES_AGAIN = timedelta(minutes=1)
BUILDING = (GroupState.CREATING, GroupState.UPDATING)
_SERVING = (GroupState.IN_SERVICE, GroupState.DEGRADED)


def converge(seen: ClusterSeen, group: GroupSeen, now: datetime) -> list[Action]:
    """Nodes to add or to let go."""
    if group.state is GroupState.DELETING:
        return empty(group, f"Instance group {group.name} is being deleted.")
    if group.state is GroupState.FAILED or seen.state is ClusterState.FAILED:
        return []
    missing = group.wants - len(group.filling) - group.incoming
    if missing < 0:
        return _scale_down(group, -missing)
    actions = _put_off(group, now) if group.priced_out else _try_other_types(group)
    wanted = [_refill(group, vacancy) for vacancy in group.vacancies[:missing] if not _is_left_alone(seen, group, vacancy)]
    new = WantNode(group.id, None, 0, f"The group wants {group.wants} nodes.")
    wanted += [new] * max(0, missing - len(group.vacancies))
    return actions + [_affordable(group, one, now) for one in wanted]


def judge(seen: ClusterSeen, group: GroupSeen, now: datetime) -> tuple[list[Action], timedelta | None]:
    """The group's own state, from its counts, and when its patience with its minimum ends."""
    if group.state in (GroupState.DELETING, GroupState.FAILED, GroupState.SYSTEM_UPDATING):
        return [], None
    if group.state in BUILDING:
        return _judge_built(seen, group, now)
    if group.state is GroupState.DEGRADED and group.current >= group.wants:
        return [MoveGroup(group.id, GroupState.IN_SERVICE, f"The group has its {group.wants} nodes again.")], None
    if group.state is GroupState.IN_SERVICE and group.current < group.wants and _is_hurt(group):
        because = f": {group.obstacle}" if group.obstacle else "."
        why = f"{group.current} of {group.wants} nodes serve{because}"
        return [MoveGroup(group.id, GroupState.DEGRADED, why)], None
    return [], None


def empty(group: GroupSeen, why: str) -> list[Action]:
    """Every node is let go; when the last one is gone, so is the group."""
    if group.is_empty:
        return [MoveGroup(group.id, GroupState.GONE, "Every node is gone.")]
    return [LetGo(node.id, why) for node in group.nodes if node.is_wanted and node.state is not NodeState.GONE]


def _judge_built(seen: ClusterSeen, group: GroupSeen, now: datetime) -> tuple[list[Action], timedelta | None]:
    has_surplus = len(group.filling) > group.wants
    if group.is_at_target or (seen.is_continuous and group.current >= group.minimum and not has_surplus):
        return [MoveGroup(group.id, GroupState.IN_SERVICE, f"The group has {group.current} nodes.")], None
    if not seen.is_continuous or group.minimum_since is None or group.current >= group.minimum:
        return [], None
    rest = group.minimum_since + MINIMUM_WITHIN - now
    if rest > timedelta(0):
        return [], rest
    because = f" The latest obstacle: {group.obstacle}" if group.obstacle else ""
    why = (
        f"Instance group {group.name} has {group.current} of the {group.minimum} nodes that it must have, and {MINIMUM_WITHIN} have passed. "
        f"It goes back to what it was.{because}"
    )
    return [MissMinimum(group.id, why)], None


def _is_hurt(group: GroupSeen) -> bool:
    """Whether something keeps the group from its target. One that merely grows is not hurt."""
    is_healing = any(node.is_replacement and not node.is_current for node in group.filling)
    return is_healing or group.obstacle is not None or (bool(group.vacancies) and len(group.filling) < group.wants)


def _refill(group: GroupSeen, vacancy: NodeSeen) -> WantNode:
    """The wish is written at once, so that a place where hosts come to nothing is seen with what its latest host came to."""
    cause = "Its provider takes a node." if vacancy.is_taken else vacancy.message or "A node was lost."
    why = f"{cause} Its place is filled again."
    if not vacancy.failures:
        return WantNode(group.id, vacancy.place, 0, why)
    not_before = vacancy.state_since + _pause(vacancy.failures)
    return WantNode(group.id, vacancy.place, vacancy.failures, why, not_before, vacancy.message)


def _is_left_alone(seen: ClusterSeen, group: GroupSeen, vacancy: NodeSeen) -> bool:
    """Without node recovery a lost node is replaced when somebody asks for that."""
    is_asked_for = seen.replaces_lost_nodes or vacancy.is_replaced_on_request or vacancy.is_taken or vacancy.failures > 0
    return not is_asked_for and group.state in _SERVING


def _try_other_types(group: GroupSeen) -> list[Action]:
    """A node for which there is no capacity is asked for as the next type; after the last one again as the first, when its pause is over."""
    actions: list[Action] = []
    for node in group.filling:
        types = node.types or group.types
        if node.state is NodeState.REQUESTED and not node.types and node.instance_type in group.too_dear:
            actions.append(TryType(node.id, types[0], group.too_dear[node.instance_type]))
            continue
        if node.state is not NodeState.REQUESTED or node.obstacle is None or len(types) < 2 or node.instance_type not in types:  # noqa: PLR2004  (one type is no choice)
            continue
        place = types.index(node.instance_type) + 1
        is_last = place == len(types)
        why = f"{node.instance_type} is not to be had: {node.obstacle}"
        actions.append(TryType(node.id, types[0] if is_last else types[place], why, is_at_once=not is_last))
    return actions


def _put_off(group: GroupSeen, now: datetime) -> list[Action]:
    """Nodes that would cost more than they may are not asked for until prices have been looked at again."""
    waiting = (node for node in group.filling if node.state is NodeState.REQUESTED)
    late = [node for node in waiting if node.launch_after is None or node.launch_after <= now + _PRICES_AGAIN / 2]
    return [PutOff(node.id, now + _PRICES_AGAIN, str(group.priced_out)) for node in late]


def _affordable(group: GroupSeen, wanted: WantNode, now: datetime) -> WantNode:
    """A spot node is first asked for as the type that promises most, and not while all of them cost too much."""
    if not group.is_spot:
        return wanted
    if group.priced_out:
        later = max(wanted.not_before or now, now + _PRICES_AGAIN)
        return replace(wanted, not_before=later, message=group.priced_out)
    return replace(wanted, instance_type=group.types[0] if group.types else None)


def _pause(failures: int) -> timedelta:
    """How long a place stays empty after its latest host: not at all after a loss, ever longer while hosts come to nothing."""
    if failures == 0:
        return timedelta(0)
    return min(_LONGEST_RETRY, _FIRST_RETRY * (1 << min(failures - 1, 12)))


def _scale_down(group: GroupSeen, count: int) -> list[Action]:
    """A node that its provider does not take after all shares its place with the one that was to come instead: one of them gives way."""
    going = _surplus(group, count)
    staying = {node.place for node in group.nodes if node.is_wanted and not node.is_leaving and node not in going}
    why = f"The group scales down to {group.wants}."
    return [LetGo(node.id, why, gives_way=node.place in staying) for node in going]


def _surplus(group: GroupSeen, count: int) -> list[NodeSeen]:
    """Who goes first: nodes without a job; of these the ones that do not serve yet, or not well; of these the least preferred type; the newest."""
    preference = {name: place for place, name in enumerate(group.types)}
    order = sorted(group.filling, key=lambda node: (node.created_at, node.id), reverse=True)
    return sorted(
        order,
        key=lambda node: (node.is_busy, node.state is NodeState.READY, -preference.get(node.instance_type, len(preference))),
    )[:count]
