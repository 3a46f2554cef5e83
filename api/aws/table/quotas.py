"""Operations of compute quotas."""

from __future__ import annotations

from typing import Final

from api.aws.table.kinds import Listing, Operation, Table, honoured, stored
from api.aws.table.parts import ORDER, PAGE, TAG, under, whole
from api.aws.table.schedulers import FILTERS, NO_FAILURE, NO_PROFILE, SEEN
from api.aws.translate import quotas as wire
from api.aws.translate import revised
from api.aws.translate.tags import write_nothing
from api.operations import quotas

_AMOUNTS: Final = (
    "InstanceType",
    "Count",
    "Accelerators",
    "VCpu",
    "MemoryInGiB",
    *whole("AcceleratorPartition", "Type", "Count"),
)
_SHARING: Final = "ComputeQuotaConfig.ResourceSharingConfig"
_CONFIG: Final = {
    **stored("ComputeQuotaConfig", note="Kept in versions and shown; jobs are not admitted by it yet."),
    **stored(
        *whole("ComputeQuotaConfig.ComputeQuotaResources"),
        *under("ComputeQuotaConfig.ComputeQuotaResources[]", *_AMOUNTS),
        note=(
            "Kept in versions and shown; jobs are not admitted by it yet. Either Count, or some of Accelerators or AcceleratorPartition, VCpu "
            "and MemoryInGiB; accelerators and partitions must be such as the instance type has. The sum of all quotas may exceed the cluster."
        ),
    ),
    **stored(_SHARING, f"{_SHARING}.Strategy", note="LendAndBorrow where it is left out."),
    **stored(f"{_SHARING}.BorrowLimit", note="1 to 500 percent, with LendAndBorrow only; 50 where it is left out."),
    **stored(
        *whole(f"{_SHARING}.AbsoluteBorrowLimits"),
        *under(f"{_SHARING}.AbsoluteBorrowLimits[]", *_AMOUNTS),
        note="With LendAndBorrow only; by the rules of ComputeQuotaResources.",
    ),
    **stored("ComputeQuotaConfig.PreemptTeamTasks", note="LowerPriority where it is left out. No job gives way to another yet."),
    **stored(
        "ComputeQuotaTarget",
        "ComputeQuotaTarget.FairShareWeight",
        note="A weight is 0 where it is left out. Nothing is shared by it yet.",
    ),
    **honoured("ComputeQuotaTarget.TeamName", note="A cluster has one quota for a team."),
    **stored("ActivationState", note="Enabled where it is left out. Jobs are not admitted by it yet."),
    **stored("Description", note="Text for people."),
}

QUOTAS: Table = {
    "CreateComputeQuota": Operation(
        wire.read_create,
        quotas.create,
        wire.write_made,
        note="Names are unique on their cluster. Either orchestrator will do. Quotas end with their cluster.",
        members={**honoured("Name", "ClusterArn", *TAG), **_CONFIG},
    ),
    "DescribeComputeQuota": Operation(
        wire.read_wanted,
        quotas.describe,
        wire.write_description,
        note="The newest version, unless one is named. Status is always that of the newest.",
        members=honoured("ComputeQuotaId", "ComputeQuotaVersion"),
        absent={**NO_FAILURE, **NO_PROFILE},
    ),
    "UpdateComputeQuota": Operation(
        wire.read_update,
        quotas.update,
        wire.write_updated,
        note="Makes the next version. ComputeQuotaConfig and ComputeQuotaTarget replace the whole ones before; what is left out stays.",
        members={**honoured("ComputeQuotaId"), **honoured("TargetVersion", note=SEEN), **_CONFIG},
    ),
    "DeleteComputeQuota": Operation(
        wire.read_id,
        quotas.delete,
        write_nothing,
        note="ResourceNotFound afterwards.",
        members=honoured("ComputeQuotaId"),
    ),
    "ListComputeQuotas": Listing(
        revised.read_listing,
        quotas.listed,
        wire.write_listing,
        note="Newest first unless SortOrder says otherwise.",
        members=honoured(*FILTERS, *ORDER, *PAGE),
    ),
}
