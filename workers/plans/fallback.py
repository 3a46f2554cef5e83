"""Which groups stand in for spot groups that cannot be had, and when what was borrowed goes back. Pure: same snapshot, same actions.

A spot group first tries all of its types, again and again. Only when a node has been waited for as long as its policy says does another group run one
node more in its place: a loan, which raises what the lender wants and nothing else. The spot group goes on asking, and when spot has served for a while
the loan is given back: the lender scales down by one, which lets jobs leave as any scaling down does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from models.cluster.states import ClusterState, GroupState
from models.node.states import NodeState
from workers.plans.cluster_seen import Action, Borrow, ClusterSeen, GiveBack, GroupSeen, NodeSeen, PolicySeen
from workers.plans.decision import soonest

_LENDING = (GroupState.CREATING, GroupState.IN_SERVICE, GroupState.UPDATING, GroupState.DEGRADED)
_OPEN = (ClusterState.IN_SERVICE, ClusterState.UPDATING)


def fall_back(seen: ClusterSeen, now: datetime) -> tuple[list[Action], timedelta | None]:
    """What is borrowed, what is given back, and when to look again at the latest. A classic cluster borrows once it is in service."""
    groups = {group.name: group for group in seen.groups}
    actions: list[Action] = []
    retry: timedelta | None = None
    for group in seen.groups:
        actions += _give_back(group, groups, now)
        if not actions and group.is_spot and group.policy is not None and _may_borrow(seen, group):
            borrowed, patience = _borrow(group, group.policy, groups, now)
            actions += borrowed
            retry = soonest(retry, patience)
        retry = soonest(retry, _until_return(group, now))
    return actions, retry


def _give_back(group: GroupSeen, groups: Mapping[str, GroupSeen], now: datetime) -> list[Action]:
    """Loans of lenders that are no more; all, if nothing says any more that it falls back; and as many as spot serves again, the newest first."""
    by_id = {one.id: one for one in groups.values()}
    gone = [loan for loan in group.loans if loan.lender not in by_id or by_id[loan.lender].state is GroupState.DELETING]
    actions: list[Action] = [GiveBack(loan.id, "The instance group that stood in is going.") for loan in gone]
    kept = [loan for loan in group.loans if loan not in gone]
    if group.state is GroupState.DELETING:
        return actions + [GiveBack(loan.id, f"Instance group {group.name} is being deleted.") for loan in kept]
    if group.policy is None or not group.policy.fallback_groups:
        return actions + [GiveBack(loan.id, "No policy lets the group fall back any more.") for loan in kept]
    needed = max(0, group.target - len(_steady(group, group.policy, now)))
    surplus = kept[needed:]
    return actions + [GiveBack(loan.id, f"{group.name} needs it no longer: its own nodes serve.") for loan in reversed(surplus)]


def _borrow(
    group: GroupSeen, policy: PolicySeen, groups: Mapping[str, GroupSeen], now: datetime
) -> tuple[list[Action], timedelta | None]:
    waiting = sorted(_waiting(group), key=lambda node: (node.state_since, node.id))
    due = [node for node in waiting if now - node.state_since >= policy.fall_back_after]
    covered = len(group.loans) if policy.return_to_spot else max(0, len(group.filling) - group.wants)
    lenders = [groups[name] for name in policy.fallback_groups if name in groups and _lends(groups[name], group)]
    actions: list[Action] = []
    if lenders:
        since = [f"{group.name} has no node for one of its places: {_obstacle(node)}" for node in due[covered:]]
        actions += [Borrow(group.id, lenders[0].id, f"{why} {lenders[0].name} stands in.") for why in since]
        actions += _turn_to(group, policy, lenders, groups, now)
    early = [policy.fall_back_after - (now - node.state_since) for node in waiting if node not in due]
    return actions, soonest(*early)


def _turn_to(
    group: GroupSeen, policy: PolicySeen, lenders: list[GroupSeen], groups: Mapping[str, GroupSeen], now: datetime
) -> list[Action]:
    """A loan from a group that has no hosts to be had either passes to the next one, as slowly as it was taken out."""
    stuck = {one.id for one in groups.values() if one.obstacle}
    actions: list[Action] = []
    for loan in group.loans:
        if loan.lender in stuck and now - loan.since >= policy.fall_back_after + timedelta(seconds=10):
            actions.append(GiveBack(loan.id, "The instance group that stood in cannot be had either."))
            actions.append(Borrow(group.id, lenders[0].id, f"{lenders[0].name} stands in for {group.name} instead."))
    return actions


def _until_return(group: GroupSeen, now: datetime) -> timedelta | None:
    """When a node that serves again will have done so for long enough."""
    if not group.loans or group.policy is None:
        return None
    rests = [group.policy.return_after - (now - node.state_since) for node in group.nodes if _serves(node)]
    return soonest(*(rest for rest in rests if rest > timedelta(0)))


def _may_borrow(seen: ClusterSeen, group: GroupSeen) -> bool:
    is_open = seen.state in _OPEN or (seen.is_continuous and seen.state is ClusterState.CREATING)
    return is_open and group.state in _LENDING


def _lends(lender: GroupSeen, borrower: GroupSeen) -> bool:
    return lender.id != borrower.id and lender.state in _LENDING and lender.obstacle is None and not lender.priced_out


def _waiting(group: GroupSeen) -> list[NodeSeen]:
    """The nodes for which there is no host, for a reason."""
    return [node for node in group.filling if node.state is NodeState.REQUESTED and (node.obstacle or node.message)]


def _obstacle(node: NodeSeen) -> str:
    return node.obstacle or node.message or "it is waited for."


def _steady(group: GroupSeen, policy: PolicySeen, now: datetime) -> list[NodeSeen]:
    return [node for node in group.nodes if _serves(node) and now - node.state_since >= policy.return_after]


def _serves(node: NodeSeen) -> bool:
    return node.is_current and node.state is NodeState.READY
