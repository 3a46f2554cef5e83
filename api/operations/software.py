"""Use-cases of node software: which release groups are to run, and how they get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.operations import images
from api.operations.health import check_not_examined
from api.operations.work import Work
from models.alarm import queries as alarms
from models.cluster import queries as clusters
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import Invalid, in_transition
from models.image import queries as releases
from models.image.queries import DEFAULT, Release, Releases
from models.node import queries as nodes
from models.software.changes import GroupWish, request_software

_MAY_BE_UPDATED = (GroupState.IN_SERVICE, GroupState.DEGRADED, GroupState.FAILED)
_WHOLE = 100


@dataclass(frozen=True)
class SoftwareWish:
    """``groups`` maps names to releases, None for the newest of the group's image; no groups means all of them."""

    cluster: str
    groups: tuple[tuple[str, str | None], ...] = ()
    image_id: str | None = None
    deployment: Mapping[str, Any] = field(default_factory=dict)


def update(work: Work, wish: SoftwareWish) -> str:
    """Asks that groups run another release and returns the cluster's ARN. Where all nodes run it already, nothing is started.

    Raises:
        NotFound: no such cluster.
        InTransition: the cluster, or a group, is busy with something else.
        Invalid: a group or a release does not exist, or the deployment contradicts itself.
    """
    cluster = clusters.find(work.session, wish.cluster, lock=True)
    if cluster.state is not ClusterState.IN_SERVICE:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb="a software update")
    check_not_examined(work, cluster, verb="a software update")
    check_deployment(wish.deployment, where="DeploymentConfig")
    chosen = _chosen(clusters.groups(work.session, cluster.id), wish)
    known = releases.releases(work.session)
    asked = [(group, _release(known, group, version, wish.image_id)) for group, version in chosen]
    for group, _ in asked:
        _check_group(group)
    behind = _behind(work, cluster, asked)
    if not behind:
        return cluster.arn
    _check_alarms(work, wish.deployment)
    wishes = [GroupWish(group, release.version, deployment=dict(wish.deployment)) for group, release in behind]
    request_software(work.session, cluster, wishes, cause=f"requested by {work.caller.name}", now=work.now)
    return cluster.arn


def check_deployment(deployment: Mapping[str, Any], *, where: str) -> None:
    """Raises Invalid."""
    for policy, size in deployment.get("RollingUpdatePolicy", {}).items():
        if size["Type"] == "CAPACITY_PERCENTAGE" and size["Value"] > _WHOLE:
            raise Invalid(
                message=f"{where}.RollingUpdatePolicy.{policy}.Value is {size['Value']}: a percentage is at most {_WHOLE}."
            )
    names = [alarm["AlarmName"] for alarm in deployment.get("AutoRollbackConfiguration", ())]
    if len(names) != len(set(names)):
        raise Invalid(message=f"{where}.AutoRollbackConfiguration names an alarm twice.")


def _chosen(present: Sequence[InstanceGroup], wish: SoftwareWish) -> list[tuple[InstanceGroup, str | None]]:
    if not wish.groups:
        return [(group, None) for group in present if group.state is not GroupState.DELETING]
    by_name = {group.name: group for group in present}
    names = [name for name, _ in wish.groups]
    for name in names:
        if name not in by_name:
            raise Invalid(message=f"Instance group '{name}' in InstanceGroups does not exist in the cluster.")
        if names.count(name) > 1:
            raise Invalid(message=f"InstanceGroups names '{name}' twice; instance groups are identified by their names.")
    return [(by_name[name], version) for name, version in wish.groups]


def _release(known: Releases, group: InstanceGroup, version: str | None, image_id: str | None) -> Release:
    where = f"for instance group '{group.name}'"
    now = known.by_version.get(group.image_wanted or "")
    if version is None and image_id is None and now is not None and now.image_id != DEFAULT:
        raise Invalid(
            message=f"Instance group '{group.name}' runs image '{now.image_id}': say which image it is to run with ImageId, 'default' for ours."
        )
    release = images.find(known, version=version, image_id=image_id, where=where)
    if release is None:
        raise Invalid(message="There is no image release to update to: register one with RegisterImageRelease.")
    return release


def _check_group(group: InstanceGroup) -> None:
    if group.state not in _MAY_BE_UPDATED:
        raise in_transition(kind="Instance group", name=group.name, state=group.state, verb="a software update")


def _behind(work: Work, cluster: Cluster, asked: Sequence[tuple[InstanceGroup, Release]]) -> list[tuple[InstanceGroup, Release]]:
    """The groups of which a node, or the wish, is not at the release."""
    running: dict[str, set[str | None]] = {}
    for node in nodes.of_cluster(work.session, cluster.id):
        if node.is_wanted:
            running.setdefault(node.group_id, set()).add(node.image)
    return [
        (group, release)
        for group, release in asked
        if group.image_wanted != release.version or running.get(group.id, set()) - {release.version}
    ]


def _check_alarms(work: Work, deployment: Mapping[str, Any]) -> None:
    names = [alarm["AlarmName"] for alarm in deployment.get("AutoRollbackConfiguration", ())]
    for name, reason in alarms.ringing(work.session, names).items():
        raise Invalid(
            message=f"Alarm '{name}' in AutoRollbackConfiguration rings already ({reason}): the update would be rolled back at once."
        )
