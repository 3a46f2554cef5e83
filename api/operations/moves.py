"""Use-case of moving nodes to another group, of the same or another cluster. Instance, place and address stay; the software is the new group's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from api.operations.additions import LARGEST_GROUP
from api.operations.batches import BatchChoice, Failure, Misfit, Outcome, Trouble, all_failed, judge
from api.operations.work import Work
from models import replay
from models.cluster import queries as clusters
from models.cluster.counts import request_count
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import InTransition, Invalid, LimitExceeded, NotFound, in_transition
from models.job import queries as jobs
from models.move import wake
from models.node import queries as nodes
from models.node import wishes
from models.node.states import NodeState
from models.node.table import Node
from models.operation.changes import request_operation
from models.operation.states import OperationKind

_MAY_MOVE = (GroupState.IN_SERVICE, GroupState.DEGRADED)


@dataclass(frozen=True)
class Place:
    """A group of a cluster, which is named by its ARN."""

    cluster: str
    group: str


@dataclass(frozen=True)
class MoveWish:
    """Exactly one of ``count``, ``instance_ids`` and ``logical_ids`` says which nodes. ``token`` names the request, which may come twice."""

    source: Place
    target: Place
    count: int | None = None
    instance_ids: tuple[str, ...] = ()
    logical_ids: tuple[str, ...] = ()
    token: str | None = None


@dataclass(frozen=True)
class _End:
    """One end of the move, its cluster locked."""

    cluster: Cluster
    group: InstanceGroup


def move(work: Work, wish: MoveWish) -> Outcome:
    """Asks that nodes leave their group, after their jobs, and serve in another one. A repeated request is given its first answer.

    Raises:
        NotFound: a cluster or a group does not exist.
        InTransition: a cluster or a group is busy.
        Invalid: the two ends do not allow it, no node can be moved, or too few are left.
        LimitExceeded: the new group would be larger than a group can be.
    """
    if sum((wish.count is not None, bool(wish.instance_ids), bool(wish.logical_ids))) != 1:
        raise Invalid(message="Specify exactly one of InstanceCount, NodeIds and NodeLogicalIds.")
    scope = f"{work.caller.account_id}/{work.caller.key_id or work.caller.name} MoveClusterNodes"
    request = {name: value for name, value in asdict(wish).items() if name != "token"}
    kept = replay.recall(work.session, scope, wish.token, request, now=work.now) if wish.token else None
    if kept is not None:
        return _read(kept)
    source, target = _ends(work, wish)
    outcome, chosen = _choose(work, wish, source, target)
    if not chosen:
        raise Invalid(message=all_failed("moved", outcome.failures))
    _check_counts(source.group, target.group, len(chosen))
    _ask(work, source, target, chosen)
    if wish.token:
        replay.remember(work.session, scope, wish.token, request, asdict(outcome), now=work.now)
    return outcome


def _ends(work: Work, wish: MoveWish) -> tuple[_End, _End]:
    """Both ends; their clusters are locked in the order of their ids, which end their ARNs."""
    arns = sorted({wish.source.cluster, wish.target.cluster}, key=lambda arn: arn.rpartition("/")[2])
    locked = {arn: clusters.find(work.session, arn, lock=True) for arn in arns}
    source, target = (_end(work, locked[place.cluster], place.group) for place in (wish.source, wish.target))
    if source.group is target.group:
        raise Invalid(message=f"Instance group '{source.group.name}' is both source and target; name another one.")
    return source, target


def _end(work: Work, cluster: Cluster, name: str) -> _End:
    if not cluster.is_continuous or "Eks" not in cluster.settings.get("Orchestrator", {}):
        raise Invalid(
            message=f"MoveClusterNodes needs clusters whose Orchestrator is Eks and whose NodeProvisioningMode is Continuous; '{cluster.name}' is none."
        )
    if cluster.state is not ClusterState.IN_SERVICE:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb="a move of nodes")
    group = next((group for group in clusters.groups(work.session, cluster.id) if group.name == name), None)
    if group is None:
        raise NotFound(kind="Instance group", name=name)
    if group.is_restricted:
        raise Invalid(message=f"Nodes of the restricted instance group '{name}' cannot be moved.")
    if group.state not in _MAY_MOVE:
        raise in_transition(kind="Instance group", name=name, state=group.state, verb="a move of nodes")
    return _End(cluster, group)


def _choose(work: Work, wish: MoveWish, source: _End, target: _End) -> tuple[Outcome, list[Node]]:
    check = _check(source.group, target.group)
    if wish.count is not None:
        names = _idle_first(work, source, check)
        if len(names) < wish.count:
            raise Invalid(
                message=f"InstanceCount is {wish.count}, but {len(names)} nodes of instance group '{source.group.name}' can be moved."
            )
        choice = BatchChoice(source.cluster.name, instance_ids=tuple(names[: wish.count]))
    else:
        choice = BatchChoice(source.cluster.name, wish.instance_ids, wish.logical_ids)
    return judge(work, source.cluster, choice, check)


def _check(source: InstanceGroup, target: InstanceGroup) -> Callable[[Node], None]:
    def check(node: Node) -> None:
        if node.group_id != source.id:
            raise Invalid(message=f"Node '{node.instance_id}' is in instance group '{node.group_name}', not in '{source.name}'.")
        wishes.check_free(node, "a move")
        if node.state is not NodeState.READY:
            raise in_transition(kind="Node", name=node.instance_id, state=node.state, verb="a move")
        if node.instance_type not in target.instance_types:
            message = f"Node '{node.instance_id}' is of type {node.instance_type}; instance group '{target.name}' takes {', '.join(target.instance_types)}."
            raise Misfit(message)

    return check


def _idle_first(work: Work, source: _End, check: Callable[[Node], None]) -> list[str]:
    """The nodes that can be moved: those without a job first, of these the newest."""
    busy = jobs.busy_nodes(work.session, source.cluster.id)
    present = sorted(nodes.of_cluster(work.session, source.cluster.id), key=lambda node: (node.created_at, node.id), reverse=True)
    fit = []
    for node in sorted(present, key=lambda node: node.id in busy):
        try:
            check(node)
        except (InTransition, Invalid, Misfit):
            continue
        fit.append(str(node.instance_id))
    return fit


def _check_counts(source: InstanceGroup, target: InstanceGroup, count: int) -> None:
    left = source.target_count - count
    if left < source.min_count:
        raise Invalid(
            message=f"Instance group '{source.name}' would be left with {left} nodes; its MinInstanceCount is {source.min_count}."
        )
    if target.target_count + count > LARGEST_GROUP:
        what = f"InstanceCount of instance group '{target.name}'"
        raise LimitExceeded(what=what, wanted=target.target_count + count, limit=LARGEST_GROUP, remedy="Move fewer nodes.")


def _ask(work: Work, source: _End, target: _End, chosen: list[Node]) -> None:
    details = {"nodes": [node.logical_id for node in chosen], "to": target.group.name}
    operation_id = request_operation(work.session, source.cluster.id, OperationKind.MOVE, details=details, now=work.now)
    why = f"{len(chosen)} nodes move from {source.cluster.name}/{source.group.name} to {target.cluster.name}/{target.group.name}."
    for end, change in ((source, -len(chosen)), (target, len(chosen))):
        request_count(work.session, end.cluster, end.group, change, why=why, operation_id=operation_id, now=work.now)
        wake(work.session, end.cluster, now=work.now)
    for node in chosen:
        wishes.request_move(work.session, node, target.group, operation_id=operation_id, now=work.now)


def _read(kept: Mapping[str, Any]) -> Outcome:
    failures = {
        name: [Failure(one["name"], Trouble(one["trouble"]), one["message"]) for one in kept[name]]
        for name in ("failed_instances", "failed_places")
    }
    return Outcome(kept["asked_places"], list(kept["instances"]), list(kept["places"]), **failures)
