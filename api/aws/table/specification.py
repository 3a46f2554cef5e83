"""What becomes of the members in which a cluster and its groups are specified; CreateCluster and UpdateCluster take the same ones."""

from __future__ import annotations

from typing import Final

from api.aws.table.kinds import Support, honoured, refused, stored
from api.aws.table.parts import DEPLOYMENT, FILE_SYSTEM, LUSTRE, VOLUME, VPC, under, whole

_NO_IAM = "There is no IAM here: nothing is done under this role."
_NETWORK = "Nodes stand in the provider's own network."
_MOUNT = "Immutable. Nothing is mounted by itself: a lifecycle script that mounts it finds it in DescribeClusterNode."
_NEW_ONLY = "Of an existing group it is changed by UpdateClusterSoftware alone."
_LUSTRE = "No file system is made: a restricted group's nodes have what their provider gives them."
_NO_SLURM = "Slurm itself is run by those who install it on the nodes."
_NO_KUBERNETES = (
    "DescribeCluster and DescribeClusterNode show them, for whoever runs Kubernetes on the nodes. Nothing here speaks to Kubernetes: "
    "nobody puts them on its nodes or puts back what was taken off by hand, and what is Current is always what is Desired."
)


def _of_any_group(group: str) -> Support:
    """Members that restricted groups have, too."""
    storage, schedule = f"{group}.InstanceStorageConfigs", f"{group}.ScheduledUpdateConfig"
    zfs = tuple(name for name in FILE_SYSTEM if name != "MountName")
    return {
        **honoured(group.removesuffix("[]"), f"{group}.InstanceCount", f"{group}.InstanceGroupName"),
        **honoured(f"{group}.InstanceType", note="Immutable."),
        **stored(f"{group}.ExecutionRole", note=f"Immutable. {_NO_IAM}"),
        **stored(f"{group}.ThreadsPerCore", note="Immutable. Threads are those of the provider's machines."),
        **stored(
            storage, *whole(f"{storage}[].EbsVolumeConfig", *VOLUME), note="Immutable. Disks are those of the provider's machines."
        ),
        **stored(*whole(f"{storage}[].FsxLustreConfig", *FILE_SYSTEM), note=_MOUNT),
        **stored(*whole(f"{storage}[].FsxOpenZfsConfig", *zfs), note=_MOUNT),
        **honoured(f"{group}.OnStartDeepHealthChecks", note="Of nodes that start after the change."),
        **refused({f"{group}.TrainingPlanArn": "Leave it out: capacity comes from the provider, not from training plans."}),
        **stored(*whole(f"{group}.OverrideVpcConfig", *VPC), note=f"Immutable. {_NETWORK}"),
        **honoured(*whole(schedule, "ScheduleExpression"), note="cron(minute hour day month weekday year), in UTC."),
        **honoured(*whole(f"{schedule}.DeploymentConfig", *DEPLOYMENT), note="Of the update that the schedule starts."),
    }


def _of_group(group: str) -> Support:
    patch, lifecycle, kubernetes = f"{group}.AutoPatchConfig", f"{group}.LifeCycleConfig", f"{group}.KubernetesConfig"
    return {
        **_of_any_group(group),
        **honoured(
            f"{group}.MinInstanceCount",
            note="Continuous clusters. A group that does not have as many nodes within 3 hours goes back to what it was.",
        ),
        **honoured(
            *whole(f"{group}.InstanceRequirements", "InstanceTypes"),
            note="Continuous clusters. In order of preference: a node falls to the next type when there is no capacity for one.",
        ),
        **honoured(*whole(lifecycle, "SourceS3Uri", "OnCreate"), note="The script runs once on every new node."),
        **honoured(f"{lifecycle}.OnInitComplete", note="As OnCreate; with both, after it."),
        **honoured(f"{group}.ImageId", note=f"'default', or an image of which a release was registered. {_NEW_ONLY}"),
        **honoured(f"{group}.ImageReleaseVersion", note=f"A registered release; left out: the image's newest. {_NEW_ONLY}"),
        **honoured(
            *whole(patch, "PatchingStrategy"),
            note="Patching is an update of the group's software to the newest release of its image.",
        ),
        **honoured(f"{patch}.IdleWaitWindowInSeconds", note="With WhenIdle and WhenAllIdle only; 86400 where it is left out."),
        **honoured(*whole(f"{patch}.PatchSchedule", "NextPatchDate"), note="Left out: a day after a newer release was seen."),
        **honoured(*whole(f"{patch}.DeploymentConfig", *DEPLOYMENT), note="Of the update that patching starts."),
        **honoured(
            *whole(f"{patch}.DrainPolicy", "DrainTimeoutInSeconds", "OnDrainTimeout"),
            note="With DrainFirst only; 3600 seconds, and then Skip, where they are left out.",
        ),
        **stored(
            *whole(kubernetes, "Labels", "Taints", *under("Taints[]", "Key", "Value", "Effect")),
            note=_NO_KUBERNETES,
        ),
        **honoured(
            *whole(f"{group}.SlurmConfig", "NodeType"),
            note=f"The Controller is unique, is neither scaled, deleted nor replaced, and a continuous cluster waits for it and for Login. {_NO_SLURM}",
        ),
        **stored(f"{group}.SlurmConfig.PartitionNames", note=_NO_SLURM),
        **honoured(*whole(f"{group}.CapacityRequirements", "Spot", "OnDemand"), note="Immutable. A node's CapacityType."),
        **stored(*whole(f"{group}.NetworkInterface", "InterfaceType"), note=f"Immutable. {_NETWORK}"),
    }


def _of_restricted_group(group: str) -> Support:
    lustre = under("EnvironmentConfig", *whole("FSxLustreConfig", *LUSTRE))
    return {**_of_any_group(group), **stored(*whole(group, *whole("EnvironmentConfig"), *lustre)[1:], note=f"Immutable. {_LUSTRE}")}


def _of_cluster() -> Support:
    shared = "RestrictedInstanceGroupsConfig.SharedEnvironmentConfig"
    slurm = "Orchestrator.Slurm"
    return {
        **stored(
            "RestrictedInstanceGroupsConfig",
            *whole(shared, "FSxLustreDeletionPolicy", *whole("FSxLustreConfig", *LUSTRE)),
            note=_LUSTRE,
        ),
        **stored(
            *whole("Orchestrator", *whole("Eks", "ClusterArn")),
            note="Immutable. An EKS cluster belongs to one cluster until that is gone. Nothing here speaks to Kubernetes.",
        ),
        **stored(slurm, note=_NO_SLURM),
        **stored(f"{slurm}.SlurmConfigStrategy", note=f"Refused with NodeProvisioningMode Continuous. {_NO_SLURM}"),
        **stored(
            *whole(f"{slurm}.AccountingDatabase", "Endpoint", "Port", "Name", "SecretArn"),
            note="Nothing here connects to it: Slurm is run by those who install it on the nodes.",
        ),
        **honoured(
            "NodeRecovery", note="Automatic where it is left out. None: a lost node is shown, and replaced only when asked for."
        ),
        **honoured(
            *whole("TieredStorageConfig", "Mode", "InstanceMemoryAllocationPercentage"),
            note="With any orchestrator, on a running cluster too, and without disturbing its jobs. Enable without a percentage takes 20. Every update replaces both.",
        ),
        **honoured("NodeProvisioningMode", note="Immutable."),
        **stored("ClusterRole", note=f"It cannot change while AutoScaling is enabled. {_NO_IAM}"),
        **stored(
            *whole("AutoScaling", "Mode", "AutoScalerType"),
            note="Mode Enable needs Continuous, Eks and ClusterRole. Karpenter is run by those who install it; it adds nodes by "
            "BatchAddClusterNodes.",
        ),
    }


GROUPS: Final[Support] = {**_of_group("InstanceGroups[]"), **_of_restricted_group("RestrictedInstanceGroups[]")}
CLUSTER: Final[Support] = _of_cluster()
