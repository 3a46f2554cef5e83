"""What follows from what is the matter with a node. Pure: same snapshot, same actions.

Suspect, confirm, act. One sign alone costs nobody anything; what is confirmed shows at once, by label, taint and event; then the node's work is
asked to leave within a limit, and the host is started anew or replaced. Faults of the user's program never cost a node. Where nobody lets us
repair, labels and taints stay, nothing is locked, and people are told again and again: every quarantine has an exit, or somebody who is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from models.condition.states import OPEN, REAL, ConditionState, FaultClass, Repair, Source
from models.node.labels import DEEP_CHECK, Worn, dressed
from models.node.states import SERVING, NodeState, Schedulability
from workers.plans import brake
from workers.plans.brake import HoldRepairs
from workers.plans.decision import Decision, soonest
from workers.plans.repair_seen import (
    Action,
    CallOff,
    Conclude,
    ConditionSeen,
    Dress,
    HealthSeen,
    Leave,
    Mark,
    Policy,
    Reboot,
    Remind,
    Replace,
    RestartProcess,
    Stay,
    Unknown,
)

LEAVES = "Its host is to be repaired: "
"""How the reason begins for which we have a node's work leave."""
MONITOR = "monitor"
_ENOUGH = 2
_COUNTING = (*SERVING, NodeState.DRAINING, NodeState.DETACHING)
"""The states in which a node's devices are all expected to be there."""
_AT_ONCE = frozenset({"xid:79"})
"""The device has fallen off the bus: nothing that runs there can still save."""


def plan(seen: HealthSeen, now: datetime) -> Decision[Action]:
    """What to do about one node's health, and what it is to wear."""
    if seen.state in (NodeState.RELEASING, NodeState.GONE):
        return Decision()
    verdicts = [_judge(seen, condition, now) for condition in seen.conditions]
    actions = [action for verdict in verdicts for action in verdict.actions]
    after = _after(seen, actions, now)
    is_braked = any(one.state is ConditionState.HELD and one.source is not Source.OPERATOR for one in after)
    if is_braked and seen.is_recovered and seen.brake.is_new:
        actions.append(HoldRepairs(str(seen.brake.why)))
    repairs, again = _repair(seen, after, verdicts, now)
    actions += [*_mark(seen, after, verdicts), *repairs, *_stay(seen, after), *_call_off(seen)]
    actions += _dress(seen, after, _schedulability(after, verdicts))
    return Decision(tuple(actions), soonest(again, *(verdict.again_in for verdict in verdicts)))


def repair_of(condition: ConditionSeen, policy: Policy) -> Repair:
    """What a confirmed condition calls for."""
    match condition.fault_class:
        case FaultClass.APPLICATION:
            return Repair.NOTHING
        case FaultClass.TRANSIENT if times(condition.struck, policy.burst) < policy.transients:
            return Repair.PROCESS
        case FaultClass.REPLACE:
            return Repair.REPLACE
        case FaultClass.REBOOT | FaultClass.TRANSIENT:
            return Repair.REPLACE if condition.reboots and condition.source is not Source.OPERATOR else Repair.REBOOT
    by_policy = {Unknown.LABEL: Repair.LABEL, Unknown.REBOOT: Repair.REBOOT, Unknown.IGNORE: Repair.NOTHING}[policy.unknown]
    return Repair.REPLACE if by_policy is Repair.REBOOT and condition.reboots else by_policy


def times(struck: Iterable[datetime], burst: timedelta) -> int:
    """How often something happened: what follows within a burst of what was counted is the same once more."""
    count, last = 0, None
    for at in sorted(struck):
        if last is None or at - last >= burst:
            count, last = count + 1, at
    return count


# --------------------------------------------------------------------------------------------------- each condition


@dataclass(frozen=True)
class _Verdict:
    """What is concluded of one condition; ``repair`` is what is, or will be, done about it."""

    condition: ConditionSeen
    actions: tuple[Action, ...] = ()
    repair: Repair | None = None
    again_in: timedelta | None = None


def _judge(seen: HealthSeen, condition: ConditionSeen, now: datetime) -> _Verdict:
    if condition.state is ConditionState.SUSPECTED:
        return _confirm(seen, condition, now)
    if _is_cured(seen, condition):
        return _Verdict(condition, (Conclude(condition.id, ConditionState.RESOLVED, "The host was started anew since."),))
    repair = repair_of(condition, seen.policy)
    if repair in (Repair.NOTHING, Repair.PROCESS):
        return _Verdict(condition, _pass(condition, repair), repair)
    if repair is Repair.LABEL:
        return _watch(seen, condition, now)
    begun = _begin(seen, condition, repair, now)
    if condition.fault_class is not FaultClass.TRANSIENT or condition.state is not ConditionState.CONFIRMED:
        return begun
    return replace(begun, actions=(RestartProcess(condition.id, _struck(condition)), *begun.actions))


def _confirm(seen: HealthSeen, condition: ConditionSeen, now: datetime) -> _Verdict:
    """A monitor that cannot tell is waited for; anything else is believed when it is seen again, or lasts.

    What is counted is counted on a node that serves: on one that starts its devices may still come up. Nothing else is done in the same step, so
    that the brake counts this node too before its repair begins.
    """
    if condition.code == MONITOR or (condition.source is Source.CHECK and seen.state not in _COUNTING):
        return _Verdict(condition)
    rest = condition.state_since + seen.policy.suspect - now
    if condition.seen < _ENOUGH and rest > timedelta(0):
        return _Verdict(condition, again_in=rest)
    why = "It was seen again." if condition.seen >= _ENOUGH else f"It has lasted for {seen.policy.suspect.total_seconds():g} s."
    repair = None if _is_cured(seen, condition) else repair_of(condition, seen.policy)
    return _Verdict(condition, (Conclude(condition.id, ConditionState.CONFIRMED, why),), repair, timedelta(0))


def _is_cured(seen: HealthSeen, condition: ConditionSeen) -> bool:
    return condition.start < seen.starts and seen.state in SERVING and seen.is_free


def _pass(condition: ConditionSeen, repair: Repair) -> tuple[Action, ...]:
    if repair is Repair.PROCESS:
        why = f"{_struck(condition)}; the node is as good as before."
        return (RestartProcess(condition.id, why), Conclude(condition.id, ConditionState.RESOLVED, why, repair))
    why = (
        "It is the program's own doing: the node is as good as before."
        if condition.fault_class is FaultClass.APPLICATION
        else "Nobody knows this code, and the policy says to tell it and no more."
    )
    return (Conclude(condition.id, ConditionState.RESOLVED, why, repair),)


def _struck(condition: ConditionSeen) -> str:
    return f"{condition.type} ({condition.code}): the process that it struck starts anew"


def _watch(seen: HealthSeen, condition: ConditionSeen, now: datetime) -> _Verdict:
    """A code that nobody knows keeps new work away for a while."""
    rest = condition.state_since + seen.policy.quarantine - now
    if rest <= timedelta(0):
        why = f"Nothing more came of it within {seen.policy.quarantine}."
        return _Verdict(condition, (Conclude(condition.id, ConditionState.RESOLVED, why, Repair.LABEL),))
    return _Verdict(condition, repair=Repair.LABEL, again_in=rest)


def _begin(seen: HealthSeen, condition: ConditionSeen, repair: Repair, now: datetime) -> _Verdict:
    is_begun = condition.state is ConditionState.REPAIRING
    if not seen.is_wanted or (is_begun and (seen.is_recovered or condition.start < seen.starts)):
        return _Verdict(condition, repair=repair)
    held = _held(seen, condition, repair)
    if held is None:
        why = f"{repair.capitalize()} begins{_again(seen, condition, repair)}."
        return _Verdict(condition, (Conclude(condition.id, ConditionState.REPAIRING, why, repair),), repair)
    again = seen.policy.remind if not seen.is_recovered else brake.LOOK_AGAIN
    if condition.state is not ConditionState.HELD:
        return _Verdict(condition, (Conclude(condition.id, ConditionState.HELD, held, repair),), repair, again)
    rest = condition.told_at + seen.policy.remind - now
    reminder = (Remind(condition.id, held),) if rest <= timedelta(0) else ()
    return _Verdict(condition, reminder, repair, soonest(again, rest if not reminder else None))


def _held(seen: HealthSeen, condition: ConditionSeen, repair: Repair) -> str | None:
    """Why nothing may be done now."""
    if not seen.is_recovered:
        verb = "BatchRebootClusterNodes" if repair is Repair.REBOOT else "BatchReplaceClusterNodes"
        return f"NodeRecovery is None: no {repair} begins by itself. {verb}, or the label Schedulable, ends this."
    return None if condition.source is Source.OPERATOR else seen.brake.why


def _again(seen: HealthSeen, condition: ConditionSeen, repair: Repair) -> str:
    if repair is Repair.REPLACE and condition.fault_class is not FaultClass.REPLACE:
        return ": a reboot did not cure it, for the same came again"
    if condition.fault_class is FaultClass.TRANSIENT:
        return f": the same device has had it {times(condition.struck, seen.policy.burst)} times"
    return ""


# ----------------------------------------------------------------------------------------------------- the whole node


def _after(seen: HealthSeen, actions: list[Action], now: datetime) -> tuple[ConditionSeen, ...]:
    """The conditions as they will be when these actions have been written."""
    found = {condition.id: condition for condition in seen.conditions}
    for action in actions:
        if isinstance(action, Conclude):
            found[action.condition] = replace(found[action.condition], state=action.new, state_since=now)
    return tuple(condition for condition in found.values() if condition.state in OPEN)


def _schedulability(after: tuple[ConditionSeen, ...], verdicts: list[_Verdict]) -> Schedulability:
    """The worst of what is the matter decides."""
    real = {condition.id for condition in after if condition.state in REAL}
    repairs = {verdict.repair for verdict in verdicts if verdict.condition.id in real}
    if Repair.REPLACE in repairs:
        return Schedulability.PENDING_REPLACEMENT
    if Repair.REBOOT in repairs:
        return Schedulability.PENDING_REBOOT
    return Schedulability.UNSCHEDULABLE if Repair.LABEL in repairs else Schedulability.SCHEDULABLE


def _mark(seen: HealthSeen, after: tuple[ConditionSeen, ...], verdicts: list[_Verdict]) -> list[Action]:
    new = _schedulability(after, verdicts)
    if new is seen.schedulability:
        return []
    told = ", ".join(f"{condition.type} ({condition.code})" for condition in after if condition.state in REAL)
    return [Mark(new, told or "Nothing is the matter with it any more.")]


def _repair(
    seen: HealthSeen, after: tuple[ConditionSeen, ...], verdicts: list[_Verdict], now: datetime
) -> tuple[list[Action], timedelta | None]:
    """The worst of the repairs that have begun; when to look again for it."""
    repairs = {verdict.condition.id: verdict.repair for verdict in verdicts}
    under_way = [condition for condition in after if condition.state is ConditionState.REPAIRING]
    for repair in (Repair.REPLACE, Repair.REBOOT):
        of_kind = [condition for condition in under_way if repairs[condition.id] is repair]
        if of_kind and seen.is_wanted:
            return _go_on(seen, repair, of_kind, now)
    return [], None


def _go_on(
    seen: HealthSeen, repair: Repair, conditions: list[ConditionSeen], now: datetime
) -> tuple[list[Action], timedelta | None]:
    """Work leaves first, as long as there is some, and within the limit."""
    first = conditions[0]
    why = f"{first.type} ({first.code})"
    is_possible = seen.is_free if repair is Repair.REPLACE else seen.is_free and seen.state in SERVING
    if not is_possible:
        return [], None  # whatever is under way wakes the node when it is over
    deadline = min(condition.state_since for condition in conditions) + seen.policy.drain
    if seen.leave_by is not None:
        deadline = min(deadline, seen.leave_by)
    is_lost = any(condition.code in _AT_ONCE for condition in conditions)
    if seen.is_busy and not is_lost and now < deadline:
        leave = [] if seen.leave_by == deadline else [Leave(deadline, f"{LEAVES}{why}.")]
        return [*leave], deadline - now
    return [Replace(why, seen.replaced) if repair is Repair.REPLACE else Reboot(why)], None


def _stay(seen: HealthSeen, after: tuple[ConditionSeen, ...]) -> list[Action]:
    """What had to leave because of a repair need not any more."""
    is_ours = seen.leave_why is not None and seen.leave_why.startswith(LEAVES)
    is_needed = any(condition.state is ConditionState.REPAIRING for condition in after)
    return [Stay("Its repair is over.")] if is_ours and not is_needed and seen.is_wanted else []


def _call_off(seen: HealthSeen) -> list[Action]:
    """Somebody has switched node recovery off before the reboot began: what is done from now on is for people to ask."""
    return (
        [] if seen.is_recovered or not seen.has_reboot_to_call_off or not seen.is_wanted else [CallOff("NodeRecovery is None now.")]
    )


def _dress(seen: HealthSeen, after: tuple[ConditionSeen, ...], schedulability: Schedulability) -> list[Action]:
    shown = schedulability
    if shown is Schedulability.SCHEDULABLE and seen.is_kept_from_work:
        shown = Schedulability.UNSCHEDULABLE
    real = [condition for condition in after if condition.state in REAL]
    wanted = dressed(
        seen.worn,
        schedulability=shown,
        is_leaving=seen.leave_why is not None,
        types=[condition.type for condition in real],
        reasons=[condition.reason for condition in real],
        declared=Worn({**seen.declared.labels, **seen.deep_check}, seen.declared.taints),
        declared_before=Worn({**seen.declared_before.labels, DEEP_CHECK: ""}, seen.declared_before.taints),
    )
    is_same = dict(wanted.labels) == dict(seen.worn.labels) and list(wanted.taints) == [dict(taint) for taint in seen.worn.taints]
    is_known = seen.declared == seen.declared_before
    return [] if is_same and is_known else [Dress(wanted, "Its health or its group says so.")]
