"""Operations of nodes' health."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from api.operations import conditions
from api.operations.conditions import HealthView, Labelling
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, NextToken, Wire, word
from models.condition.states import REAL
from models.condition.table import Condition
from models.errors import Forbidden, InTransition, InUse, NotFound
from models.ids import ConditionId
from models.paging import Cut

_WITHHELD: Final = "It names a process that was not your team's."

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=317)]


class NodeOfCluster(Asked):
    """``node_id`` is an instance id, or a logical id, which survives a replacement."""

    cluster_name: Name
    node_id: Id


class ConditionsWanted(Asked):
    """Of a cluster's nodes, or of one; only those that are not over if ``open``."""

    cluster_name: Name
    node_id: Id | None = None
    open: bool = False
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class LabelsWanted(Asked):
    """``labels`` are put on the node, ``removed`` are names of those to take off.

    ``sagemaker.amazonaws.com/node-health-status`` may be UnschedulablePendingReboot or UnschedulablePendingReplacement, which has the node
    repaired as after a fault that was detected, or Schedulable, which ends its conditions.
    """

    cluster_name: Name
    node_id: Id
    labels: dict[str, str] = Field(default_factory=dict, max_length=50)
    removed: Annotated[tuple[Label, ...], Field(max_length=50)] = ()


class GroupOfCluster(Asked):
    cluster_name: Name
    instance_group_name: Name


class ConditionShape(Wire):
    """``type`` and ``reason`` are HyperPod's words. ``class`` is one of application, transient, reboot, replace, unknown; ``source`` says who told it.

    ``status`` is one of Suspected, Confirmed, Held (nobody may repair it now), Repairing, Resolved and Withdrawn; ``repair`` is what was decided:
    nothing, process, label, reboot or replace; ``why`` says it in words. Of a shared cluster a line of ``evidence`` that names another team's process
    is withheld.
    """

    condition_id: str
    node_logical_id: str
    instance_id: str | None
    type: str
    reason: str
    code: str
    fault_class: str
    source: str
    status: str
    vendor: str | None
    device: str | None
    evidence: str
    seen: int
    repair: str | None
    why: str | None
    at: datetime
    since: datetime
    ended_at: datetime | None


class ConditionList(Wire):
    conditions: tuple[ConditionShape, ...]
    next_token: str | None


class TaintShape(Wire):
    key: str
    value: str | None
    effect: str


class FaultDetail(Wire):
    """As in HyperPod's annotation ``sagemaker.amazonaws.com/fault-details``."""

    timestamp: datetime
    type: str
    reason: str
    message: str


class NodeHealth(Wire):
    """``schedulability`` is what the node's conditions come to; ``repairs_held`` is why repairs of its group are held back, if they are.

    ``hardware`` is the newest report of its accelerators, as its agent told it. ``leave_by`` is when whatever runs there must have left.
    """

    cluster_id: str
    instance_group_name: str
    instance_id: str | None
    node_logical_id: str
    schedulability: str
    labels: dict[str, Any]
    taints: tuple[TaintShape, ...]
    fault_details: tuple[FaultDetail, ...]
    conditions: tuple[ConditionShape, ...]
    hardware: dict[str, Any] | None
    leave_by: datetime | None
    leave_why: str | None
    repairs_held: str | None


class Resumed(Wire):
    cluster_name: str
    instance_group_name: str
    held_since: datetime
    free_until: datetime | None


def describe(work: Work, asked: NodeOfCluster) -> NodeHealth:
    """What a node carries and what is the matter with it: labels, taints, fault details, conditions, and its accelerators as they are."""
    return _health(conditions.describe(work, asked.cluster_name, asked.node_id))


def listing(work: Work, asked: ConditionsWanted) -> ConditionList:
    """What is and was the matter with the nodes of a cluster, newest first."""
    cut = Cut(limit=asked.max_results, is_descending=True, cursor=asked.next_token)
    found = conditions.listed(work, asked.cluster_name, cut, node_id=asked.node_id, open_only=asked.open)
    withheld = conditions.withheld(work, found.rows)
    return ConditionList(conditions=tuple(_shape(row, withheld) for row in found.rows), next_token=found.cursor)


def label(work: Work, asked: LabelsWanted) -> NodeHealth:
    """Put labels on a node, or take some off. The word of its health has it repaired, or says that all is well."""
    return _health(conditions.label(work, Labelling(asked.cluster_name, asked.node_id, asked.labels, asked.removed)))


def resume(work: Work, asked: GroupOfCluster) -> Resumed:
    """Let repairs of an instance group go on that were held back because too many of its nodes had trouble at once."""
    hold = conditions.resume(work, asked.cluster_name, asked.instance_group_name)
    return Resumed(
        cluster_name=asked.cluster_name,
        instance_group_name=asked.instance_group_name,
        held_since=hold.created_at,
        free_until=hold.resumed_until,
    )


def _health(view: HealthView) -> NodeHealth:
    node = view.node
    return NodeHealth(
        cluster_id=node.cluster_id,
        instance_group_name=node.group_name,
        instance_id=node.instance_id,
        node_logical_id=node.logical_id,
        schedulability=node.schedulability.value,
        labels=node.labels,
        taints=tuple(TaintShape(key=one["Key"], value=one.get("Value"), effect=one["Effect"]) for one in node.taints),
        fault_details=tuple(_detail(row, view.withheld) for row in view.conditions if row.state in REAL),
        conditions=tuple(_shape(row, view.withheld) for row in view.conditions),
        hardware=node.facts.get("hardware"),
        leave_by=node.leave_by,
        leave_why=node.leave_why,
        repairs_held=view.hold.why if view.hold is not None else None,
    )


def _detail(row: Condition, withheld: Collection[ConditionId]) -> FaultDetail:
    return FaultDetail(timestamp=row.at, type=row.type, reason=row.reason, message=_evidence(row, withheld))


def _evidence(row: Condition, withheld: Collection[ConditionId]) -> str:
    return _WITHHELD if row.id in withheld else row.evidence


def _shape(row: Condition, withheld: Collection[ConditionId]) -> ConditionShape:
    return ConditionShape(
        condition_id=row.id,
        node_logical_id=row.logical_id,
        instance_id=row.instance_id,
        type=row.type,
        reason=row.reason,
        code=row.code,
        fault_class=row.fault_class.value,
        source=row.source.value,
        status=word(row.state),
        vendor=row.vendor,
        device=row.device,
        evidence=_evidence(row, withheld),
        seen=row.seen,
        repair=None if row.repair is None else row.repair.value,
        why=row.why,
        at=row.at,
        since=row.state_since,
        ended_at=row.ended_at,
    )


CONDITIONS: OwnTable = (
    Own(
        "DescribeNodeHealth",
        "GET",
        "/v1/clusters/{cluster_name}/nodes/{node_id}/health",
        NodeOfCluster,
        NodeHealth,
        describe,
        errors=(NotFound,),
    ),
    Own(
        "ListNodeConditions",
        "GET",
        "/v1/clusters/{cluster_name}/node-conditions",
        ConditionsWanted,
        ConditionList,
        listing,
        page_of="conditions",
        errors=(NotFound,),
    ),
    Own(
        "LabelClusterNode",
        "POST",
        "/v1/clusters/{cluster_name}/nodes/{node_id}/labels",
        LabelsWanted,
        NodeHealth,
        label,
        errors=(NotFound, Forbidden, InUse, InTransition),
    ),
    Own(
        "ResumeRepairs",
        "POST",
        "/v1/clusters/{cluster_name}/instance-groups/{instance_group_name}/resume-repairs",
        GroupOfCluster,
        Resumed,
        resume,
        errors=(NotFound, Forbidden),
    ),
)
