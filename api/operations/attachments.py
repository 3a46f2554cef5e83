"""Use-cases of volumes and network interfaces of nodes. Asking for what is already so, or on its way, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.errors import Invalid, LimitExceeded, NotFound, in_transition
from models.node import queries as nodes
from models.node.states import SERVING, NodeState
from models.node.table import Node
from models.volume import queries
from models.volume.changes import request_attachment, request_detachment
from models.volume.states import AttachmentKind, AttachmentState
from models.volume.table import Attachment

DEVICES: Final = tuple(f"/dev/xvd{letter}" for letter in "fghijklmnopqrstuvwxyz")
MOST_INTERFACES: Final = 15
"""Of one node."""


@dataclass(frozen=True)
class AttachmentWish:
    """``cluster`` is its name or ARN; ``resource`` a volume's or an interface's id."""

    cluster: str
    instance_id: str
    resource: str


@dataclass(frozen=True)
class AttachmentView:
    cluster: Cluster
    node: Node
    attachment: Attachment


def attach_volume(work: Work, wish: AttachmentWish) -> AttachmentView:
    """Asks that a volume is attached to a node, under the first device name that is free there.

    Raises:
        NotFound: no such cluster, or no such node in it.
        InTransition: cluster or node do not serve.
        Invalid: not a cluster with Eks, a restricted group, or another node has the volume.
        LimitExceeded: the node has no device name left.
    """
    cluster, node = _find(work, wish)
    _check_eks(cluster)
    taken = _taken(work, node, AttachmentKind.VOLUME, wish.resource)
    if taken is not None:
        return AttachmentView(cluster, node, taken)
    used = {one.device for one in queries.of_node(work.session, node.id)}
    device = next((name for name in DEVICES if name not in used), None)
    if device is None:
        raise LimitExceeded(
            what=f"Volumes of node '{node.instance_id}'", wanted=len(DEVICES) + 1, limit=len(DEVICES), remedy="Detach one first."
        )
    made = request_attachment(work.session, node, AttachmentKind.VOLUME, wish.resource, device=device, now=work.now)
    return AttachmentView(cluster, node, made)


def detach_volume(work: Work, wish: AttachmentWish) -> AttachmentView:
    """Asks that a volume leaves its node.

    Raises:
        NotFound: no such cluster or node, or the volume is not attached to it.
        InTransition: the cluster is not in service.
        Invalid: not a cluster with Eks, or a restricted group.
    """
    cluster, node = _find(work, wish, must_serve=False)
    _check_eks(cluster)
    found = next((one for one in queries.of_node(work.session, node.id) if one.resource_id == wish.resource), None)
    if found is None:
        raise NotFound(kind=f"Attachment to node '{node.instance_id}' of volume", name=wish.resource)
    request_detachment(work.session, node, found, now=work.now)
    return AttachmentView(cluster, node, found)


def attach_interface(work: Work, wish: AttachmentWish) -> AttachmentView:
    """Asks that a network interface is attached to a node, for as long as its instance lives.

    Raises:
        NotFound: no such cluster, or no such node in it.
        InTransition: cluster or node do not serve.
        Invalid: a restricted group, or another node has the interface.
        LimitExceeded: the node has as many interfaces as it can have.
    """
    cluster, node = _find(work, wish)
    taken = _taken(work, node, AttachmentKind.INTERFACE, wish.resource)
    if taken is not None:
        return AttachmentView(cluster, node, taken)
    present = sum(one.kind is AttachmentKind.INTERFACE for one in queries.of_node(work.session, node.id))
    if present >= MOST_INTERFACES:
        what = f"Network interfaces of node '{node.instance_id}'"
        raise LimitExceeded(what=what, wanted=present + 1, limit=MOST_INTERFACES, remedy="Choose another node.")
    made = request_attachment(work.session, node, AttachmentKind.INTERFACE, wish.resource, now=work.now)
    return AttachmentView(cluster, node, made)


def _find(work: Work, wish: AttachmentWish, *, must_serve: bool = True) -> tuple[Cluster, Node]:
    """The cluster and its node, locked in this order."""
    cluster = clusters.find(work.session, wish.cluster, lock=True)
    found = nodes.of_batch(work.session, cluster.id, instance_ids=(wish.instance_id,))
    node = next((node for node in found if node.state is not NodeState.GONE), None)
    if node is None:
        raise NotFound(kind="Node", name=wish.instance_id)
    if cluster.state is not ClusterState.IN_SERVICE:
        raise in_transition(
            kind="Cluster", name=cluster.name, state=cluster.state, verb="a change of what is attached to its nodes"
        )
    if clusters.group(work.session, node.group_id).is_restricted:
        raise Invalid(message=f"Nothing can be attached to the nodes of the restricted instance group '{node.group_name}'.")
    if must_serve and (node.state not in SERVING or not node.is_wanted):
        raise in_transition(kind="Node", name=wish.instance_id, state=node.state, verb="an attachment")
    return cluster, node


def _check_eks(cluster: Cluster) -> None:
    if "Eks" not in cluster.settings.get("Orchestrator", {}):
        raise Invalid(message=f"Volumes need a cluster whose Orchestrator is Eks; '{cluster.name}' is none.")


def _taken(work: Work, node: Node, kind: AttachmentKind, resource: str) -> Attachment | None:
    """The attachment that this node has already. Raises Invalid, InTransition."""
    found = queries.of_resource(work.session, resource)
    if found is None:
        return None
    if found.node_id != node.id:
        raise Invalid(message=f"{kind.capitalize()} '{resource}' is attached to another node; detach it first.")
    if found.state is AttachmentState.DETACHING:
        raise in_transition(kind=kind.capitalize(), name=resource, state=found.state, verb="another attachment")
    return found
