"""Operations of scheduler configurations."""

from __future__ import annotations

from typing import Final

from api.aws.table.kinds import Listing, Operation, Table, honoured, stored
from api.aws.table.parts import ORDER, PAGE, TAG, whole
from api.aws.translate import revised
from api.aws.translate import schedulers as wire
from api.aws.translate.tags import write_nothing
from api.operations import schedulers

FILTERS: Final = ("CreatedAfter", "CreatedBefore", "NameContains", "ClusterArn", "Status")
NO_FAILURE: Final = {"FailureReason": "What is stored holds at once; nothing is rolled out that could fail."}
NO_PROFILE: Final = {
    f"{who}.{member}": "Callers are keys and tokens; there are no Studio domains here."
    for who in ("CreatedBy", "LastModifiedBy")
    for member in ("UserProfileArn", "UserProfileName", "DomainId", "IamIdentity.SourceIdentity")
}
SEEN: Final = "The version that the caller has seen: ConflictException when it is not the newest any more."
_CONFIG: Final = stored(
    *whole(
        "SchedulerConfig",
        "PriorityClasses",
        "PriorityClasses[].Name",
        "PriorityClasses[].Weight",
        "FairShare",
        "IdleResourceSharing",
    ),
    note="Kept in versions and shown. FairShare is Enabled where it is left out. Jobs are not ranked by it yet.",
)

SCHEDULERS: Table = {
    "CreateClusterSchedulerConfig": Operation(
        wire.read_create,
        schedulers.create,
        wire.write_made,
        note="Names are unique on their cluster, which may have several. Either orchestrator will do. They end with their cluster.",
        members={**honoured("Name", "ClusterArn", *TAG), **_CONFIG, **stored("Description", note="Text for people.")},
    ),
    "DescribeClusterSchedulerConfig": Operation(
        wire.read_wanted,
        schedulers.describe,
        wire.write_description,
        note="The newest version, unless one is named. Status is always that of the newest.",
        members=honoured("ClusterSchedulerConfigId", "ClusterSchedulerConfigVersion"),
        absent={**NO_FAILURE, **NO_PROFILE},
    ),
    "UpdateClusterSchedulerConfig": Operation(
        wire.read_update,
        schedulers.update,
        wire.write_updated,
        note="Makes the next version. SchedulerConfig replaces the whole one before; what is left out stays.",
        members={
            **honoured("ClusterSchedulerConfigId"),
            **honoured("TargetVersion", note=SEEN),
            **_CONFIG,
            **stored("Description", note="Text for people."),
        },
    ),
    "DeleteClusterSchedulerConfig": Operation(
        wire.read_id,
        schedulers.delete,
        write_nothing,
        note="ResourceNotFound afterwards.",
        members=honoured("ClusterSchedulerConfigId"),
    ),
    "ListClusterSchedulerConfigs": Listing(
        revised.read_listing,
        schedulers.listed,
        wire.write_listing,
        note="Newest first unless SortOrder says otherwise.",
        members=honoured(*FILTERS, *ORDER, *PAGE),
    ),
}
