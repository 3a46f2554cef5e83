"""Use-cases of clusters: what a caller may wish for, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from api.operations.tags import check_keys
from api.operations.work import Work
from models.catalogue import instance_type
from models.cluster import changes, queries
from models.cluster.changes import ClusterSpec, GroupSpec
from models.cluster.queries import ClusterFilter
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import Immutable, InTransition, Invalid, NotFound, Unsupported
from models.node import queries as nodes
from models.paging import Cut, Page

SETTLED = (ClusterState.IN_SERVICE, ClusterState.FAILED)
FIXED = (
    "InstanceType",
    "ExecutionRole",
    "ThreadsPerCore",
    "OverrideVpcConfig",
    "CapacityRequirements",
    "InstanceStorageConfigs",
    "NetworkInterface",
)
"""Members of a group that cannot change while it lives. Leaving one out that was set is a change, too."""


@dataclass(frozen=True)
class ClusterChange:
    """What is to become of a cluster. Groups are matched by name; what is not named stays as it is."""

    cluster: str
    groups: tuple[GroupSpec, ...] = ()
    to_delete: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupView:
    """A group as it is wished for and as it is: ``current_count`` nodes serve."""

    group: InstanceGroup
    current_count: int


@dataclass(frozen=True)
class ClusterView:
    cluster: Cluster
    groups: tuple[GroupView, ...]


@dataclass(frozen=True)
class ClusterListing:
    wanted: ClusterFilter
    cut: Cut
    by_name: bool


def create(work: Work, wish: ClusterSpec) -> str:
    """Asks for a cluster and returns its ARN.

    Raises:
        AlreadyExists: the name is taken until its cluster is deleted.
        Invalid, Unsupported: the wish contradicts itself, or asks for what this control plane cannot do.
    """
    check_keys(wish.tags)
    _check_groups(wish.groups, is_continuous=wish.is_continuous)
    _check_orchestrator(work, wish.settings)
    if not wish.groups:
        raise Invalid(message="A cluster needs at least one instance group: InstanceGroups must not be empty.")
    owned = replace(wish, team=work.caller.team)
    made = changes.request_cluster(work.session, owned, region=work.region, account_id=work.account_id, now=work.now)
    return made.arn


def describe(work: Work, name_or_arn: str) -> ClusterView:
    """Raises NotFound."""
    cluster = queries.find(work.session, name_or_arn)
    current = nodes.current_counts(work.session, cluster.id)
    groups = queries.groups(work.session, cluster.id)
    return ClusterView(cluster, tuple(GroupView(group, current.get(group.id, 0)) for group in groups))


def update(work: Work, change: ClusterChange) -> str:
    """Merges a change into a cluster and returns its ARN. A change of nothing writes nothing.

    Raises:
        NotFound: the cluster, or a group that is to be deleted, does not exist.
        InTransition: the cluster is still busy with what it was asked before; a continuous one is so only while it is created or deleted.
        Immutable, Invalid, Unsupported: the change cannot be.
    """
    cluster = queries.find(work.session, change.cluster, lock=True)
    if cluster.state not in SETTLED:
        raise InTransition(kind="Cluster", name=cluster.name, state=cluster.state, verb="an update")
    _check_settings(cluster, change.settings)
    present = {group.name: group for group in queries.groups(work.session, cluster.id)}
    _check_deletions(change, present)
    merged = tuple(_merged(spec, present.get(spec.name)) for spec in change.groups)
    _check_groups(merged, is_continuous=cluster.is_continuous)
    groups = tuple(spec for spec in merged if not _is_same(spec, present.get(spec.name)))
    changed = {name: value for name, value in change.settings.items() if cluster.settings.get(name) != value}
    if groups or change.to_delete or changed:
        if not present and not groups:
            raise Invalid(
                message="A cluster needs at least one instance group, and this one has none: add one with InstanceGroups."
            )
        changes.request_update(
            work.session,
            cluster,
            groups=groups,
            to_delete=change.to_delete,
            settings=changed,
            current=nodes.current_counts(work.session, cluster.id),
            now=work.now,
        )
    return cluster.arn


def delete(work: Work, name_or_arn: str) -> str:
    """Asks for a cluster's end and returns its ARN; asking again while it goes changes nothing.

    Raises:
        NotFound: there is none, or it is gone.
        InTransition: a classic cluster is busy. A continuous one can be deleted at any time.
    """
    cluster = queries.find(work.session, name_or_arn, lock=True)
    if cluster.state not in (*SETTLED, ClusterState.DELETING) and not cluster.is_continuous:
        raise InTransition(kind="Cluster", name=cluster.name, state=cluster.state, verb="a deletion")
    changes.request_deletion(work.session, cluster, now=work.now)
    return cluster.arn


def listed(work: Work, listing: ClusterListing) -> Page[Cluster]:
    return queries.listed(work.session, listing.wanted, listing.cut, by_name=listing.by_name)


def _merged(spec: GroupSpec, present: InstanceGroup | None) -> GroupSpec:
    """The specification that a listed group is to have: members that were left out stay as they were."""
    if present is None:
        return spec
    if present.state is GroupState.DELETING:
        raise InTransition(kind="Instance group", name=spec.name, state=present.state, verb="a new group of this name")
    for member in FIXED:
        if present.spec.get(member) != spec.spec.get(member):
            raise Immutable(member=member, where="an InstanceGroup")
    minimum = spec.min_count if "MinInstanceCount" in spec.spec else present.min_count
    return replace(spec, min_count=minimum, spec={**present.spec, **spec.spec})


def _is_same(spec: GroupSpec, present: InstanceGroup | None) -> bool:
    """Whether a group is wished for as it already is: then nothing is to be started for it."""
    if present is None:
        return False
    return (spec.count, spec.min_count, spec.spec) == (present.target_count, present.min_count, present.spec)


def _check_groups(groups: tuple[GroupSpec, ...], *, is_continuous: bool) -> None:
    _refuse_repeated("InstanceGroups", (group.name for group in groups))
    for group in groups:
        if "MinInstanceCount" in group.spec and not is_continuous:
            raise Invalid(
                message=f"MinInstanceCount of instance group '{group.name}' needs a cluster whose NodeProvisioningMode is Continuous."
            )
        if group.min_count > group.count:
            raise Invalid(
                message=f"MinInstanceCount of instance group '{group.name}' is {group.min_count}; it must not exceed its InstanceCount, {group.count}."
            )
        _check_type(group)


def _check_type(group: GroupSpec) -> None:
    try:
        instance_type(group.instance_type)
    except NotFound as error:
        raise Unsupported(
            member=f"InstanceType {group.instance_type} of instance group '{group.name}'",
            remedy="Choose a type that the catalogue of instance types lists.",
        ) from error


def _check_deletions(change: ClusterChange, present: Mapping[str, InstanceGroup]) -> None:
    _refuse_repeated("InstanceGroupsToDelete", change.to_delete)
    listed_names = {group.name for group in change.groups}
    for name in change.to_delete:
        if name in listed_names:
            raise Invalid(message=f"Instance group '{name}' is both in InstanceGroups and in InstanceGroupsToDelete.")
        if name not in present:
            raise Invalid(message=f"Instance group '{name}' in InstanceGroupsToDelete does not exist in the cluster.")
    leaving = {name for name, group in present.items() if group.state is GroupState.DELETING} | set(change.to_delete)
    if change.to_delete and not (set(present) | listed_names) - leaving:
        raise Invalid(message="A cluster needs at least one instance group: the last one cannot be deleted.")


def _check_settings(cluster: Cluster, wanted: Mapping[str, Any]) -> None:
    eks_before = cluster.settings.get("Orchestrator", {}).get("Eks")
    if "Orchestrator" in wanted and wanted["Orchestrator"].get("Eks") != eks_before:
        raise Immutable(member="Orchestrator.Eks", where="a cluster")
    if "NodeProvisioningMode" in wanted and wanted["NodeProvisioningMode"] != cluster.settings.get("NodeProvisioningMode"):
        raise Immutable(member="NodeProvisioningMode", where="a cluster")


def _check_orchestrator(work: Work, settings: Mapping[str, Any]) -> None:
    eks = settings.get("Orchestrator", {}).get("Eks")
    if eks is None:
        return
    if "VpcConfig" not in settings:
        raise Invalid(message="VpcConfig is required for a cluster whose Orchestrator is Eks.")
    if queries.on_eks(work.session, eks["ClusterArn"]) is not None:
        raise Invalid(message=f"Specified cluster external resource id {eks['ClusterArn']} already in use")


def _refuse_repeated(member: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Invalid(message=f"{member} names '{name}' twice; instance groups are identified by their names.")
        seen.add(name)
