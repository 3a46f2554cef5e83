"""Operations on several nodes between wire and use-case. Pure both ways.

Lists whose model asks for one element are left out when they are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.aws.translate.nodes import status_of
from api.operations.additions import Addition, Additions, AdditionWish, Refusal
from api.operations.batches import BatchChoice, Failure, Outcome, Trouble
from api.operations.moves import MoveWish, Place

REFUSALS: Final[dict[Refusal, str]] = {
    Refusal.NO_GROUP: "InstanceGroupNotFound",
    Refusal.STATUS: "InvalidInstanceGroupStatus",
    Refusal.ZONES: "IncompatibleAvailabilityZones",
    Refusal.TYPES: "IncompatibleInstanceTypes",
}
NODE_CODES: Final[dict[Trouble, str]] = {
    Trouble.NOT_FOUND: "NodeIdNotFound",
    Trouble.STATUS: "InvalidNodeStatus",
    Trouble.IN_USE: "NodeIdInUse",
    Trouble.TYPE: "NodeInstanceTypeMismatch",
}
"""Of deletions and moves."""
INSTANCE_CODES: Final[dict[Trouble, str]] = {
    Trouble.NOT_FOUND: "InstanceIdNotFound",
    Trouble.STATUS: "InvalidInstanceStatus",
    Trouble.IN_USE: "InstanceIdInUse",
    Trouble.TYPE: "InvalidInstanceStatus",  # a restart asks for no type
}
"""Of reboots and replacements."""
_FAILURES: Final = (("Failed", "NodeId", "failed_instances"), ("FailedNodeLogicalIds", "NodeLogicalId", "failed_places"))


def read_addition(members: Mapping[str, Any]) -> AdditionWish:
    additions = tuple(
        Addition(
            one["InstanceGroupName"],
            one["IncrementTargetCountBy"],
            tuple(one.get("AvailabilityZones", ())),
            tuple(one.get("InstanceTypes", ())),
        )
        for one in members["NodesToAdd"]
    )
    return AdditionWish(members["ClusterName"], additions, members.get("ClientToken"))


def write_additions(answer: Additions) -> dict[str, Any]:
    """Both lists are always there, empty or not."""
    return {
        "Successful": [
            {
                "NodeLogicalId": one.logical_id,
                "InstanceGroupName": one.addition.group,
                "Status": "NotFound" if one.node is None else status_of(one.node),
                "AvailabilityZones": list(one.addition.zones) or None,
                "InstanceTypes": list(one.types),
            }
            for one in answer.added
        ],
        "Failed": [
            {
                "InstanceGroupName": one.addition.group,
                "ErrorCode": REFUSALS[one.refusal],
                "FailedCount": one.addition.count,
                "AvailabilityZones": list(one.addition.zones) or None,
                "InstanceTypes": list(one.addition.types) or None,
                "Message": one.message,
            }
            for one in answer.failed
        ],
    }


def read_choice(members: Mapping[str, Any]) -> BatchChoice:
    return BatchChoice(members["ClusterName"], tuple(members.get("NodeIds", ())), tuple(members.get("NodeLogicalIds", ())))


def write_deletions(outcome: Outcome) -> dict[str, Any]:
    return _write(outcome, "Code", NODE_CODES)


def write_restarts(outcome: Outcome) -> dict[str, Any]:
    """``Failed`` may be empty; what is about logical ids is there only when some were sent."""
    answer = _write(outcome, "ErrorCode", INSTANCE_CODES)
    answer.setdefault("Failed", [])
    if outcome.asked_places:
        answer.setdefault("FailedNodeLogicalIds", [])
    return answer


def read_move(members: Mapping[str, Any]) -> MoveWish:
    return MoveWish(
        source=Place(members["SourceClusterArn"], members["SourceInstanceGroupName"]),
        target=Place(members["TargetClusterArn"], members["TargetInstanceGroupName"]),
        count=members.get("InstanceCount"),
        instance_ids=tuple(members.get("NodeIds", ())),
        logical_ids=tuple(members.get("NodeLogicalIds", ())),
        token=members.get("ClientToken"),
    )


def write_moves(outcome: Outcome) -> dict[str, Any]:
    return _write(outcome, "Code", NODE_CODES)


def _write(outcome: Outcome, code: str, codes: Mapping[Trouble, str]) -> dict[str, Any]:
    answer: dict[str, Any] = {"Successful": outcome.instances, "SuccessfulNodeLogicalIds": outcome.places}
    for member, name, source in _FAILURES:
        failures: list[Failure] = getattr(outcome, source)
        answer[member] = [{name: one.name, code: codes[one.trouble], "Message": one.message} for one in failures]
    return {member: found for member, found in answer.items() if found}
