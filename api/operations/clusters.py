"""Use-cases of clusters: what a caller may wish for, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from api.operations import tiers
from api.operations.health import check_not_examined
from api.operations.images import with_images
from api.operations.instances import check_instances
from api.operations.specifications import Specification, check_controller_stays, check_specification, refuse_repeated
from api.operations.tags import check_keys
from api.operations.work import Work
from models.cluster import changes, queries
from models.cluster.changes import ClusterSpec, GroupSpec
from models.cluster.queries import ClusterFilter
from models.cluster.seen import SeenCluster, SeenGroup
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import Immutable, InTransition, Invalid, in_transition
from models.image import queries as images
from models.image.queries import Releases
from models.image.states import Freshness
from models.node import queries as nodes
from models.node.described import described
from models.node.wishes import request_look
from models.paging import Cut, Page
from models.software import queries as software
from models.software.table import GroupUpdate

SETTLED = (ClusterState.IN_SERVICE, ClusterState.FAILED)
FIXED = (
    "InstanceType",
    "ExecutionRole",
    "ThreadsPerCore",
    "OverrideVpcConfig",
    "CapacityRequirements",
    "InstanceStorageConfigs",
    "NetworkInterface",
    "EnvironmentConfig",
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
    """A group as it is wished for and as it is: ``current_count`` nodes serve; of a flexible one ``current_types`` says how many of each type.

    ``update`` is the newest update of its software; while that is under way ``at_goal`` nodes run what the group wants.
    """

    group: SeenGroup
    current_count: int
    current_types: Mapping[str, int] = field(default_factory=dict)
    update: GroupUpdate | None = None
    at_goal: int = 0


@dataclass(frozen=True)
class ClusterView:
    cluster: SeenCluster
    groups: tuple[GroupView, ...]
    releases: Releases


@dataclass(frozen=True)
class ClusterRow:
    """A cluster in a listing; ``freshness`` is that of the worst of its groups' releases."""

    cluster: Cluster
    freshness: Freshness | None


@dataclass(frozen=True)
class ClusterListing:
    wanted: ClusterFilter
    cut: Cut
    by_name: bool


def create(work: Work, wish: ClusterSpec) -> str:
    """Asks for a cluster and returns its ARN.

    Raises:
        AlreadyExists: the name is taken until its cluster is deleted.
        LimitExceeded: there would be more instances than there may be.
        Invalid, Unsupported: the wish contradicts itself, or asks for what this control plane cannot do.
    """
    check_keys(wish.tags)
    check_specification(Specification(wish.is_continuous, wish.settings, wish.groups), now=work.now)
    if not wish.groups:
        raise Invalid(message="A cluster needs at least one instance group: InstanceGroups must not be empty.")
    check_instances(work, more=sum(group.count for group in wish.groups))
    _check_eks_is_free(work, wish.settings)
    groups = with_images(work, wish.groups, {}, is_continuous=wish.is_continuous)
    owned = replace(wish, team=work.caller.team, groups=groups)
    made = changes.request_cluster(work.session, owned, region=work.region, account_id=work.account_id, now=work.now)
    return made.arn


def describe(work: Work, name_or_arn: str) -> ClusterView:
    """Raises NotFound."""
    seen = described(work.session, name_or_arn)
    flexible = [group.id for group in seen.groups if group.is_flexible]
    types = nodes.current_types(work.session, flexible) if flexible else {}
    updates = software.latest_of_groups(work.session, seen.groups)
    is_updating = seen.cluster.state is ClusterState.SYSTEM_UPDATING
    at_goal = nodes.at_wanted_image(work.session, seen.cluster.id) if is_updating else {}
    views = (
        GroupView(group, group.serving, types.get(group.id, {}), updates.get(group.id), at_goal.get(group.id, 0))
        for group in seen.groups
    )
    return ClusterView(seen.cluster, tuple(views), seen.releases)


def update(work: Work, change: ClusterChange) -> str:
    """Merges a change into a cluster and returns its ARN. A change of nothing writes nothing.

    Raises:
        NotFound: the cluster, or a group that is to be deleted, does not exist.
        InTransition: the cluster is still busy with what it was asked before; a continuous one is so only while it is created or deleted.
        Immutable, Invalid, Unsupported: the change cannot be.
    """
    cluster = queries.find(work.session, change.cluster, lock=True)
    if cluster.state not in SETTLED:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb="an update")
    check_not_examined(work, cluster, verb="an update")
    _check_settings(cluster, change.settings)
    present = {group.name: group for group in queries.groups(work.session, cluster.id)}
    _check_deletions(change, present)
    settings = _merged_settings(cluster, change.settings)
    groups = _merged_groups(work, cluster, settings, change, present)
    changed = {name: value for name, value in settings.items() if cluster.settings.get(name) != value}
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
    if groups or changed:
        request_look(work.session, cluster.id, now=work.now)  # labels, taints and node recovery are each node's affair
    if tiers.SETTING in changed:
        tiers.switch(work.session, cluster, now=work.now)
    return cluster.arn


def delete(work: Work, name_or_arn: str) -> str:
    """Asks for a cluster's end and returns its ARN; asking again while it goes changes nothing.

    Raises:
        NotFound: there is none, or it is gone.
        InTransition: a classic cluster is busy with what was asked of it. A continuous one can be deleted at any time.
    """
    cluster = queries.find(work.session, name_or_arn, lock=True)
    if cluster.state not in (*SETTLED, ClusterState.ROLLING_BACK, ClusterState.DELETING) and not cluster.is_continuous:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb="a deletion")
    changes.request_deletion(work.session, cluster, now=work.now)
    return cluster.arn


def listed(work: Work, listing: ClusterListing) -> Page[ClusterRow]:
    found = queries.listed(work.session, listing.wanted, listing.cut, by_name=listing.by_name)
    known = images.releases(work.session)
    running = queries.images_of(work.session, [cluster.id for cluster in found.rows])
    rows = (ClusterRow(cluster, known.worst(running.get(cluster.id, ()))) for cluster in found.rows)
    return Page(tuple(rows), found.cursor)


def _merged_groups(
    work: Work, cluster: Cluster, settings: Mapping[str, Any], change: ClusterChange, present: Mapping[str, InstanceGroup]
) -> tuple[GroupSpec, ...]:
    """The specifications of those listed groups that change something. Raises Immutable, InTransition, Invalid, Unsupported."""
    refuse_repeated("InstanceGroups", (group.name for group in change.groups))
    merged = tuple(_merged(work, spec, present.get(spec.name)) for spec in change.groups)
    named = {spec.name for spec in merged} | set(change.to_delete)
    staying = [_as_it_is(group) for group in present.values() if group.state is not GroupState.DELETING]
    others = [group for group in staying if group.name not in named]
    known = (group.spec.get("ScheduledUpdateConfig", {}).get("ScheduleExpression") for group in present.values())
    schedules = frozenset(expression for expression in known if expression is not None)
    wish = Specification(cluster.is_continuous, {**cluster.settings, **settings}, merged, others, schedules)
    check_specification(wish, now=work.now)
    check_controller_stays(staying, [*merged, *others])
    before = {name: group.target_count for name, group in present.items() if group.state is not GroupState.DELETING}
    going = sum(before.get(name, 0) for name in change.to_delete)
    more = sum(spec.count - before.get(spec.name, 0) for spec in merged) - going
    check_instances(work, more=more, cluster_id=cluster.id)
    merged = with_images(work, merged, present, is_continuous=cluster.is_continuous)
    return tuple(spec for spec in merged if not _is_same(spec, present.get(spec.name)))


def _merged(work: Work, spec: GroupSpec, present: InstanceGroup | None) -> GroupSpec:
    """The specification that a listed group is to have: members that were left out stay as they were."""
    if present is None:
        return spec
    if present.state is GroupState.DELETING:
        raise InTransition(kind="Instance group", name=spec.name, state=present.state, verb="a new group of this name")
    if present.is_restricted is not spec.is_restricted:
        kind = "RestrictedInstanceGroups" if present.is_restricted else "InstanceGroups"
        raise Invalid(message=f"Instance group '{spec.name}' is one of {kind}: it cannot become another kind.")
    changed = [member for member in FIXED if present.spec.get(member) != spec.spec.get(member)]
    if changed:
        raise Immutable(member=", ".join(changed), where="an InstanceGroup")
    missing = nodes.live_types(work.session, present.id) - set(spec.types) if present.is_flexible else set()
    if missing:
        raise Invalid(
            message=f"InstanceRequirements.InstanceTypes of instance group '{spec.name}' must keep {', '.join(sorted(missing))}: "
            "the group has nodes of it."
        )
    minimum = spec.min_count if "MinInstanceCount" in spec.spec else present.min_count
    return replace(spec, min_count=minimum, spec={**present.spec, **spec.spec})


def _as_it_is(group: InstanceGroup) -> GroupSpec:
    return GroupSpec(
        name=group.name,
        instance_type=group.instance_type,
        count=group.target_count,
        min_count=group.min_count,
        spec=group.spec,
        is_restricted=group.is_restricted,
    )


def _is_same(spec: GroupSpec, present: InstanceGroup | None) -> bool:
    """Whether a group is wished for as it already is: then nothing is to be started for it."""
    if present is None:
        return False
    return (spec.count, spec.min_count, spec.spec) == (present.target_count, present.min_count, present.spec)


def _check_deletions(change: ClusterChange, present: Mapping[str, InstanceGroup]) -> None:
    refuse_repeated("InstanceGroupsToDelete", change.to_delete)
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
    orchestrator = wanted.get("Orchestrator")
    before = cluster.settings.get("Orchestrator", {}).get("Eks")
    if orchestrator is not None and len(orchestrator) == 1 and orchestrator.get("Eks") != before:
        raise Immutable(member="Orchestrator.Eks", where="a cluster")
    if "NodeProvisioningMode" in wanted and wanted["NodeProvisioningMode"] != cluster.settings.get("NodeProvisioningMode"):
        raise Immutable(member="NodeProvisioningMode", where="a cluster")
    scaling = wanted.get("AutoScaling", cluster.settings.get("AutoScaling", {}))
    role = wanted.get("ClusterRole", cluster.settings.get("ClusterRole"))
    is_scaled = cluster.settings.get("AutoScaling", {}).get("Mode") == "Enable" == scaling.get("Mode")
    if is_scaled and role != cluster.settings.get("ClusterRole"):
        raise Invalid(message="ClusterRole cannot change while AutoScaling is enabled. Send AutoScaling with Mode Disable first.")


def _merged_settings(cluster: Cluster, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent replaces what was; below Slurm, member by member."""
    orchestrator = wanted.get("Orchestrator", {})
    if set(orchestrator) != {"Slurm"}:
        return dict(wanted)
    before = cluster.settings.get("Orchestrator", {}).get("Slurm", {})
    return {**wanted, "Orchestrator": {"Slurm": {**before, **orchestrator["Slurm"]}}}


def _check_eks_is_free(work: Work, settings: Mapping[str, Any]) -> None:
    eks = settings.get("Orchestrator", {}).get("Eks")
    if eks is not None and queries.on_eks(work.session, eks["ClusterArn"]) is not None:
        raise Invalid(message=f"Specified cluster external resource id {eks['ClusterArn']} already in use")
