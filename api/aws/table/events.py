"""Operations of a cluster's log of events."""

from __future__ import annotations

from api.aws.table.kinds import Listing, Operation, Table, honoured
from api.aws.table.parts import ORDER, PAGE, under
from api.aws.translate import events as wire
from api.operations import events

_METADATA = "EventDetails.EventDetails.EventMetadata"
_NO_NETWORK = "Interfaces, subnets and reservations are the provider's affair; no event tells of them."
_NO_SLURM = "Slurm's daemons are not watched."

EVENTS: Table = {
    "ListClusterEvents": Listing(
        wire.read_listing,
        events.listed,
        lambda rows, _members: wire.write_listing(rows),
        note="Continuous clusters only, as on HyperPod. Newest first unless SortOrder says otherwise.",
        members={
            **honoured("ClusterName", "InstanceGroupName", "EventTimeAfter", "EventTimeBefore", "ResourceType", *ORDER, *PAGE),
            **honoured("NodeId", note="The instance id."),
            **honoured(
                "OperationId", note="Also those of operations that ListClusterOperations has no word for, such as a deletion."
            ),
        },
    ),
    "DescribeClusterEvent": Operation(
        wire.read_choice,
        events.describe,
        wire.write_details,
        note="Continuous clusters only. EventMetadata has one member, by what the event is about.",
        members=honoured("ClusterName", "EventId"),
        absent={
            f"{_METADATA}.InstanceGroup.AmiOverride": "An event of a software update names the release in its description.",
            **dict.fromkeys(under(f"{_METADATA}.Cluster", "EksRoleAccessEntries", "SlrAccessEntry"), "There is no IAM here."),
            **dict.fromkeys(
                under(
                    f"{_METADATA}.InstanceGroup",
                    "AvailabilityZoneId",
                    "CapacityReservation",
                    "CapacityReservation.Arn",
                    "CapacityReservation.Type",
                    "SubnetId",
                    "SecurityGroupIds",
                ),
                _NO_NETWORK,
            ),
            **dict.fromkeys(
                under(
                    f"{_METADATA}.Instance",
                    "CustomerEni",
                    "AdditionalEnis",
                    "AdditionalEnis.EfaEnis",
                    "InstanceRequirementsEniConfigurations",
                    "InstanceRequirementsEniConfigurations[].CustomerEni",
                    "InstanceRequirementsEniConfigurations[].AdditionalEnis",
                    "InstanceRequirementsEniConfigurations[].AdditionalEnis.EfaEnis",
                    "CapacityReservation",
                    "CapacityReservation.Arn",
                    "CapacityReservation.Type",
                ),
                _NO_NETWORK,
            ),
            **dict.fromkeys(
                (
                    f"{_METADATA}.DatabaseConfiguration",
                    *under(f"{_METADATA}.DatabaseConfiguration", "RollbackStatus", "Advisory", "FailureMessage"),
                    f"{_METADATA}.SlurmHealth",
                    *under(f"{_METADATA}.SlurmHealth", "Component", "Status", "Reason"),
                ),
                _NO_SLURM,
            ),
        },
    ),
}
