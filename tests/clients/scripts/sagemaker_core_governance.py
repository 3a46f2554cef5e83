"""sagemaker-core's ``ClusterSchedulerConfig`` and ``ComputeQuota``, against the server that the environment names.

``sagemaker_core_governance.py CLUSTER_ARN``. Prints one JSON document, the last line, of what the objects held after each step.
"""

import json
import sys

from botocore.exceptions import ClientError
from sagemaker.core.resources import ClusterSchedulerConfig, ComputeQuota
from sagemaker.core.shapes import (
    ComputeQuotaConfig,
    ComputeQuotaResourceConfig,
    ComputeQuotaTarget,
    PriorityClass,
    ResourceSharingConfig,
    SchedulerConfig,
)

cluster_arn = sys.argv[1]
told = {}


def missing(get):
    try:
        get()
    except ClientError as error:
        return error.response["Error"]["Code"]


def code_of(error):
    return error.response["Error"]["Code"]


policy = ClusterSchedulerConfig.create(
    name="policy",
    cluster_arn=cluster_arn,
    scheduler_config=SchedulerConfig(priority_classes=[PriorityClass(name="urgent", weight=90)], fair_share="Enabled"),
)
policy.wait_for_status("Created", poll=1, timeout=30)
told["policy_created"] = [policy.name, policy.cluster_scheduler_config_version, policy.scheduler_config.priority_classes[0].weight]
policy.update(target_version=1, scheduler_config=SchedulerConfig(priority_classes=[PriorityClass(name="urgent", weight=95)]))
policy.wait_for_status("Updated", poll=1, timeout=30)
# A refresh asks for the version that the object holds, and keeps it; a new object has the newest.
told["policy_refreshed"] = policy.cluster_scheduler_config_version
policy = ClusterSchedulerConfig.get(cluster_scheduler_config_id=policy.cluster_scheduler_config_id)
told["policy_updated"] = [policy.cluster_scheduler_config_version, policy.scheduler_config.priority_classes[0].weight]
try:
    policy.update(target_version=1, description="late")
except ClientError as error:
    told["policy_conflict"] = code_of(error)
told["policies"] = [one.name for one in ClusterSchedulerConfig.get_all(cluster_arn=cluster_arn)]
policy.delete()
policy.wait_for_delete(poll=1, timeout=30)

quota = ComputeQuota.create(
    name="quota",
    cluster_arn=cluster_arn,
    compute_quota_config=ComputeQuotaConfig(
        compute_quota_resources=[ComputeQuotaResourceConfig(instance_type="ml.c5.large", count=2)],
        resource_sharing_config=ResourceSharingConfig(strategy="LendAndBorrow", borrow_limit=50),
        preempt_team_tasks="LowerPriority",
    ),
    compute_quota_target=ComputeQuotaTarget(team_name="blue", fair_share_weight=10),
)
quota.wait_for_status("Created", poll=1, timeout=30)
told["quota_created"] = [
    quota.name,
    quota.compute_quota_version,
    quota.compute_quota_target.team_name,
    quota.compute_quota_config.compute_quota_resources[0].count,
]
quota.update(target_version=1, compute_quota_target=ComputeQuotaTarget(team_name="blue", fair_share_weight=20))
quota.wait_for_status("Updated", poll=1, timeout=30)
quota = ComputeQuota.get(compute_quota_id=quota.compute_quota_id)
told["quota_updated"] = [quota.compute_quota_version, quota.compute_quota_target.fair_share_weight]
told["quotas"] = [one.name for one in ComputeQuota.get_all(cluster_arn=cluster_arn)]
quota.delete()
quota.wait_for_delete(poll=1, timeout=30)
told["gone"] = [
    missing(lambda: ClusterSchedulerConfig.get(cluster_scheduler_config_id=policy.cluster_scheduler_config_id)),
    missing(lambda: ComputeQuota.get(compute_quota_id=quota.compute_quota_id)),
]
print(f"\n{json.dumps(told)}")  # the classes leave a line unfinished
