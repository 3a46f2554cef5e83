"""Use-case of adding nodes to groups. The nodes' rows are written at once, so that their logical ids are real when they are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from api.operations.batches import BUILDING
from api.operations.instances import check_instances
from api.operations.work import Work
from models import replay
from models.cluster import queries as clusters
from models.cluster.counts import request_counts
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import Invalid, LimitExceeded, in_transition
from models.node import queries as nodes
from models.node.changes import settle_wanted_node
from models.node.states import NodeState
from models.node.table import Node

MOST_NODES: Final = 50
"""In one request."""
LARGEST_GROUP: Final = 6758


class Refusal(StrEnum):
    """Why a group gets no nodes."""

    NO_GROUP = "no such group"
    STATUS = "its state does not allow it"
    ZONES = "no such availability zone"
    TYPES = "no such instance type"


@dataclass(frozen=True)
class Addition:
    """So many nodes more for a group, of one of these instance types and in one of these zones; none named: what the group has."""

    group: str
    count: int
    zones: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdditionWish:
    """``token`` names the request: it may come twice, and is carried out once."""

    cluster: str
    additions: tuple[Addition, ...]
    token: str | None = None


@dataclass(frozen=True)
class Added:
    """``node`` is None when it has been deleted since."""

    logical_id: str
    addition: Addition
    types: tuple[str, ...]
    node: Node | None


@dataclass(frozen=True)
class NotAdded:
    addition: Addition
    refusal: Refusal
    message: str


@dataclass(frozen=True)
class Additions:
    added: tuple[Added, ...]
    failed: tuple[NotAdded, ...]


def add(work: Work, wish: AdditionWish) -> Additions:
    """Adds nodes, group by group; a repeated request is told of the same nodes, and how they are now.

    Raises:
        NotFound: no such cluster.
        Invalid: a classic cluster, more than 50 nodes, or a token that came with another request.
        InTransition: the cluster is not in service.
        LimitExceeded: a group would be larger than a group can be.
    """
    cluster = clusters.find(work.session, wish.cluster, lock=True)
    if not cluster.is_continuous:
        raise Invalid(
            message=f"BatchAddClusterNodes needs a cluster whose NodeProvisioningMode is Continuous; change InstanceCount of '{cluster.name}' with UpdateCluster."
        )
    _check_count(wish)
    scope = f"{work.caller.account_id}/{work.caller.key_id or work.caller.name} BatchAddClusterNodes"
    request = {"cluster": cluster.id, "additions": [asdict(addition) for addition in wish.additions]}
    kept = replay.recall(work.session, scope, wish.token, request, now=work.now) if wish.token else None
    if kept is not None:
        return _again(work, kept)
    if cluster.state is not ClusterState.IN_SERVICE:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb="an addition of nodes")
    answer = _add(work, cluster, wish.additions)
    if wish.token:
        replay.remember(work.session, scope, wish.token, request, _kept(answer), now=work.now)
    return answer


def _check_count(wish: AdditionWish) -> None:
    total = sum(addition.count for addition in wish.additions)
    if total > MOST_NODES:
        raise Invalid(message=f"NodesToAdd asks for {total} nodes; at most {MOST_NODES} can be added with one request.")


def _add(work: Work, cluster: Cluster, additions: Sequence[Addition]) -> Additions:
    groups = {group.name: group for group in clusters.groups(work.session, cluster.id)}
    failed: list[NotAdded] = []
    good: list[tuple[InstanceGroup, Addition]] = []
    for addition in additions:
        refusal = _refusal(work, groups.get(addition.group), addition)
        if refusal is None:
            good.append((groups[addition.group], addition))
        else:
            failed.append(NotAdded(addition, *refusal))
    by: dict[InstanceGroup, int] = {}
    for group, addition in good:
        by[group] = by.get(group, 0) + addition.count
    for group, count in by.items():
        if group.target_count + count > LARGEST_GROUP:
            what = f"InstanceCount of instance group '{group.name}'"
            raise LimitExceeded(what=what, wanted=group.target_count + count, limit=LARGEST_GROUP, remedy="Add fewer nodes.")
    if not by:
        return Additions((), tuple(failed))
    check_instances(work, more=sum(by.values()), cluster_id=cluster.id)
    current = nodes.current_counts(work.session, cluster.id)
    request_counts(work.session, cluster, by, current=current, why=f"{sum(by.values())} added.", now=work.now)
    added = [_wanted(work, group, addition) for group, addition in good for _ in range(addition.count)]
    return Additions(tuple(added), tuple(failed))


def _wanted(work: Work, group: InstanceGroup, addition: Addition) -> Added:
    first = addition.types[0] if addition.types else None
    node = settle_wanted_node(work.session, group, instance_type=first, types=addition.types, now=work.now)
    return Added(node.logical_id, addition, addition.types or group.instance_types, node)


def _refusal(work: Work, group: InstanceGroup | None, addition: Addition) -> tuple[Refusal, str] | None:
    if group is None:
        return Refusal.NO_GROUP, f"Instance group '{addition.group}' does not exist in the cluster."
    if group.state in (*BUILDING, GroupState.DELETING, GroupState.FAILED):
        return Refusal.STATUS, f"Instance group '{group.name}' is {group.state}; nodes can be added once it is in service."
    zone = f"{work.region}a"
    if addition.zones and zone not in addition.zones:
        return Refusal.ZONES, f"Instance group '{group.name}' has its nodes in {zone} only."
    other = [name for name in addition.types if name not in group.instance_types]
    if other:
        has = ", ".join(group.instance_types)
        return Refusal.TYPES, f"Instance group '{group.name}' has no nodes of {', '.join(other)}; its types are {has}."
    return None


def _kept(answer: Additions) -> dict[str, Any]:
    return {
        "added": [{"id": one.logical_id, "addition": asdict(one.addition), "types": list(one.types)} for one in answer.added],
        "failed": [{"addition": asdict(one.addition), "refusal": one.refusal, "message": one.message} for one in answer.failed],
    }


def _again(work: Work, kept: Mapping[str, Any]) -> Additions:
    """The same nodes, as they are now. One whose place was given up is found no more."""
    places = nodes.newest_at(work.session, [one["id"] for one in kept["added"]])
    added = []
    for one in kept["added"]:
        node = places.get(one["id"])
        is_deleted = node is None or (node.state is NodeState.GONE and node.lost_because is None)
        added.append(Added(one["id"], _addition(one["addition"]), tuple(one["types"]), None if is_deleted else node))
    failed = [NotAdded(_addition(one["addition"]), Refusal(one["refusal"]), one["message"]) for one in kept["failed"]]
    return Additions(tuple(added), tuple(failed))


def _addition(kept: Mapping[str, Any]) -> Addition:
    return Addition(kept["group"], kept["count"], tuple(kept["zones"]), tuple(kept["types"]))
