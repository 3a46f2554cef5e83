"""Use-cases of several nodes at once: deletion, reboot, replacement. One node's trouble is told beside the others' success.

A node that is named twice, by one id or by both of its ids, is refused as a whole: what is to be done twice to it would be a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.counts import request_counts
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import InTransition, InUse, Invalid, in_transition
from models.node import queries as nodes
from models.node import wishes
from models.node.states import NodeState
from models.node.table import Node
from models.operation.changes import request_operation
from models.operation.states import OperationKind

BUILDING = (GroupState.CREATING, GroupState.UPDATING, GroupState.SYSTEM_UPDATING)


class Trouble(StrEnum):
    """Why nothing is done to a node."""

    NOT_FOUND = "not found"
    STATUS = "its state does not allow it"
    IN_USE = "something else is under way with it"
    TYPE = "its instance type does not fit"


@dataclass(frozen=True)
class BatchChoice:
    cluster: str
    instance_ids: tuple[str, ...] = ()
    logical_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """``name`` is the id by which the caller named the node."""

    name: str
    trouble: Trouble
    message: str


@dataclass
class Outcome:
    """What became of each node, in the order and by the ids of the request."""

    asked_places: bool
    instances: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    failed_instances: list[Failure] = field(default_factory=list)
    failed_places: list[Failure] = field(default_factory=list)

    @property
    def failures(self) -> list[Failure]:
        return [*self.failed_instances, *self.failed_places]

    @property
    def has_success(self) -> bool:
        return bool(self.instances or self.places)


def delete(work: Work, choice: BatchChoice) -> Outcome:
    """Lets go of chosen nodes and lowers their groups' targets: nobody takes their places.

    Raises:
        NotFound: no such cluster.
        InTransition: the cluster is busy as a whole.
        Invalid: no id, an id twice, or nothing can be done to any of the nodes.
    """
    cluster, groups = _cluster(work, choice, "a deletion of nodes")
    left = {group.id: group.target_count for group in groups.values()}

    def check(node: Node) -> None:
        group = groups[node.group_id]
        wishes.check_removable(node)
        _check_group(group)
        _check_role(group, "deleted")
        if left[group.id] <= group.min_count:
            message = f"Instance group '{group.name}' would be left with {left[group.id] - 1} nodes; its MinInstanceCount is {group.min_count}."
            raise Invalid(message=message)
        left[group.id] -= 1

    outcome, chosen = judge(work, cluster, choice, check)
    if not chosen:
        raise Invalid(message=all_failed("deleted", outcome.failures))
    by = {group: left[group.id] - group.target_count for group in groups.values() if left[group.id] != group.target_count}
    current = nodes.current_counts(work.session, cluster.id)
    request_counts(work.session, cluster, by, current=current, why=f"{len(chosen)} deleted.", now=work.now)
    for node in chosen:
        wishes.request_removal(work.session, node, why="Its deletion was requested.", now=work.now)
    return outcome


def reboot(work: Work, choice: BatchChoice) -> Outcome:
    """Has chosen nodes started anew, each as soon as its jobs have left, or its patience with them is over.

    Raises:
        NotFound: no such cluster.
        InTransition: the cluster is busy as a whole.
        Invalid: no id, an id twice, or logical ids in a classic cluster.
    """
    cluster, groups = _cluster(work, choice, "a reboot of nodes")
    _refuse_places(cluster, choice)

    def check(node: Node) -> None:
        wishes.check_free(node, "a reboot")
        _check_update(groups[node.group_id])

    outcome, chosen = judge(work, cluster, choice, check)
    if chosen:
        operation_id = request_operation(work.session, cluster.id, OperationKind.REBOOT, details=_names(chosen), now=work.now)
        for node in chosen:
            wishes.request_reboot(work.session, node, why=_by(work), operation_id=operation_id, now=work.now)
    return outcome


def replace(work: Work, choice: BatchChoice) -> Outcome:
    """Has chosen nodes replaced: new instances in the same places, whatever the cluster's NodeRecovery is.

    Raises:
        NotFound: no such cluster.
        InTransition: the cluster is busy as a whole.
        Invalid: no id, an id twice, or logical ids in a classic cluster.
    """
    cluster, groups = _cluster(work, choice, "a replacement of nodes")
    _refuse_places(cluster, choice)

    def check(node: Node) -> None:
        wishes.check_replaceable(node)
        _check_role(groups[node.group_id], "replaced")
        _check_update(groups[node.group_id])

    outcome, chosen = judge(work, cluster, choice, check)
    if chosen:
        operation_id = request_operation(work.session, cluster.id, OperationKind.REPLACEMENT, details=_names(chosen), now=work.now)
        for node in chosen:
            wishes.request_replacement(work.session, node, why=_by(work), operation_id=operation_id, now=work.now)
    return outcome


def judge(work: Work, cluster: Cluster, choice: BatchChoice, check: Callable[[Node], None]) -> tuple[Outcome, list[Node]]:
    """Which of the named nodes something can be done to, by ``check``, and what is the matter with the others. The nodes stay locked.

    Raises:
        Invalid: a node is named twice.
    """
    found = nodes.of_batch(work.session, cluster.id, instance_ids=choice.instance_ids, logical_ids=choice.logical_ids)
    present = [node for node in found if node.state is not NodeState.GONE]
    by_instance: dict[str, Node] = {node.instance_id: node for node in present if node.instance_id}
    by_place: dict[str, Node] = {node.logical_id: node for node in present}
    _refuse_twice(choice, by_place)
    outcome = Outcome(asked_places=bool(choice.logical_ids))
    chosen: list[Node] = []
    for names, known, good, bad in (
        (choice.instance_ids, by_instance, outcome.instances, outcome.failed_instances),
        (choice.logical_ids, by_place, outcome.places, outcome.failed_places),
    ):
        for name in names:
            failure = _judged(name, known.get(name), check)
            if failure is not None:
                bad.append(failure)
                continue
            good.append(name)
            chosen.append(known[name])
    return outcome, sorted(chosen, key=lambda node: node.id)


def all_failed(verb: str, failures: Sequence[Failure]) -> str:
    return f"No node can be {verb}: " + " ".join(failure.message for failure in failures)


def _judged(name: str, node: Node | None, check: Callable[[Node], None]) -> Failure | None:
    if node is None:
        return Failure(name, Trouble.NOT_FOUND, f"Node '{name}' does not exist in the cluster.")
    try:
        check(node)
    except InUse as error:
        return Failure(name, Trouble.IN_USE, str(error))
    except (InTransition, Invalid) as error:
        return Failure(name, Trouble.STATUS, str(error))
    except Misfit as error:
        return Failure(name, Trouble.TYPE, str(error))
    return None


class Misfit(Exception):
    """A node's instance type is none that its new group takes."""


def _cluster(work: Work, choice: BatchChoice, verb: str) -> tuple[Cluster, Mapping[str, InstanceGroup]]:
    """The cluster, locked, and its groups by id."""
    cluster = clusters.find(work.session, choice.cluster, lock=True)
    if not choice.instance_ids and not choice.logical_ids:
        raise Invalid(message="Name at least one node in NodeIds or NodeLogicalIds.")
    if cluster.state is not ClusterState.IN_SERVICE:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb=verb)
    return cluster, {group.id: group for group in clusters.groups(work.session, cluster.id)}


def _refuse_twice(choice: BatchChoice, by_place: Mapping[str, Node]) -> None:
    for member, names in (("NodeIds", choice.instance_ids), ("NodeLogicalIds", choice.logical_ids)):
        for name in names:
            if names.count(name) > 1:
                raise Invalid(message=f"{member} names '{name}' twice; name each node once.")
    for place in choice.logical_ids:
        node = by_place.get(place)
        if node is not None and node.instance_id in choice.instance_ids:
            raise Invalid(
                message=f"'{node.instance_id}' in NodeIds and '{place}' in NodeLogicalIds are the same node; name it once."
            )


def _refuse_places(cluster: Cluster, choice: BatchChoice) -> None:
    if choice.logical_ids and not cluster.is_continuous:
        raise Invalid(message="NodeLogicalIds need a cluster whose NodeProvisioningMode is Continuous; use NodeIds.")


def _check_group(group: InstanceGroup) -> None:
    if group.state in (*BUILDING, GroupState.DELETING):
        raise in_transition(kind="Instance group", name=group.name, state=group.state, verb="a deletion of its nodes")


def _check_update(group: InstanceGroup) -> None:
    if group.state is GroupState.SYSTEM_UPDATING:
        raise InUse(kind="Instance group", name=group.name, by="a software update")


def _check_role(group: InstanceGroup, verb: str) -> None:
    if group.spec.get("SlurmConfig", {}).get("NodeType") == "Controller":
        raise Invalid(message=f"The nodes of instance group '{group.name}' are Slurm controllers, which cannot be {verb}.")


def _names(chosen: Sequence[Node]) -> dict[str, list[str]]:
    return {"nodes": [node.logical_id for node in chosen]}


def _by(work: Work) -> str:
    return f"by {work.caller.name}."
