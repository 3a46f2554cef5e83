"""Cluster operations between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.aws.translate.clusters import read_cut
from api.aws.translate.states import OPERATION_STATUS
from api.aws.translate.times import read_after, read_before
from api.operations.operations import OperationChoice, OperationListing, OperationView
from models.operation.queries import OperationFilter
from models.operation.states import OperationKind, OperationState


def read_listing(members: Mapping[str, Any], cursor: str | None) -> OperationListing:
    kind, status = members.get("Type"), members.get("Status")
    return OperationListing(
        cluster=members["ClusterName"],
        wanted=OperationFilter(
            created_after=read_after(members, "CreationTimeAfter"),
            created_before=read_before(members, "CreationTimeBefore"),
            kind=None if kind is None else OperationKind(kind),
            state=None if status is None else _state(status),
        ),
        cut=read_cut(members, cursor, default_order="Descending"),
    )


def read_choice(members: Mapping[str, Any]) -> OperationChoice:
    return OperationChoice(members["ClusterName"], members["OperationId"])


def write_listing(views: Sequence[OperationView]) -> dict[str, Any]:
    return {"ClusterOperationSummaries": [_summary(view) for view in views]}


def write_details(view: OperationView) -> dict[str, Any]:
    operation = view.operation
    answer = _summary(view)
    if operation.type == OperationKind.SCALING:
        answer["ScalingDetails"] = [_scaling(name, counts, view) for name, counts in operation.details.items()]
    if operation.type == OperationKind.HEALTH_CHECK:
        answer["DeepHealthCheckDetails"] = operation.details["checks"]
    return answer


def _summary(view: OperationView) -> dict[str, Any]:
    return {
        "OperationId": view.operation.id,
        "ClusterArn": view.cluster.arn,
        "Type": view.operation.type,
        "Status": OPERATION_STATUS[view.operation.state],
        "CreationTime": view.operation.created_at,
    }


def _scaling(name: str, counts: Mapping[str, Any], view: OperationView) -> dict[str, Any]:
    return {
        "InstanceGroupName": name,
        "Status": OPERATION_STATUS[view.operation.state],
        "Original": {
            "CurrentCount": counts.get("current", counts["before"]),
            "TargetCount": counts["before"],
            "MinCount": counts.get("minimum_before", counts["minimum"]),
        },
        "Desired": {"TargetCount": counts["wanted"], "MinCount": counts["minimum"]},
    }


def _state(status: str) -> OperationState:
    return next(state for state, word in OPERATION_STATUS.items() if word == status)
