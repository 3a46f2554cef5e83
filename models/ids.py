"""Typed identifiers and names of resources. The only module of the domain that draws random bits."""

from __future__ import annotations

import hashlib
import secrets
import string
import uuid
from typing import NewType

ClusterId = NewType("ClusterId", str)
"""12 lower-case alphanumerics: the suffix of the cluster's ARN."""
GroupId = NewType("GroupId", str)
NodeId = NewType("NodeId", str)
"""The row of one launched host. A replacement is a new node with the same logical id."""
LogicalId = NewType("LogicalId", str)
"""A UUID: the place in the cluster which successive instances fill."""
InstanceId = NewType("InstanceId", str)
"""``i-`` and 17 hex digits, given by the provider."""
JobId = NewType("JobId", str)
ProcessId = NewType("ProcessId", str)
OperationId = NewType("OperationId", str)
EventId = NewType("EventId", str)
FaultId = NewType("FaultId", str)
AccessKeyId = NewType("AccessKeyId", str)
"""``AKIA`` and 16 of A-Z, 2-7 for an access key; ``tok-`` and a word for a token."""
HealthCheckId = NewType("HealthCheckId", str)
CheckId = NewType("CheckId", str)
"""Of one node's examination."""
UpdateId = NewType("UpdateId", str)
"""Of a software update."""
RevisedId = NewType("RevisedId", str)
"""12 lower-case alphanumerics: of a scheduler configuration or a compute quota."""
CheckpointId = NewType("CheckpointId", str)
"""``<namespace>/<step>``: two reports of one step, from two nodes, mean one row."""
ExportId = NewType("ExportId", str)
ConditionId = NewType("ConditionId", str)
HoldId = NewType("HoldId", str)
"""Of what keeps the repairs of a group back."""

_ALPHANUMERIC = string.ascii_lowercase + string.digits
_KEY_ALPHABET = string.ascii_uppercase + "234567"
_SECRET_ALPHABET = string.ascii_letters + string.digits


def _word(length: int) -> str:
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(length))


def new_cluster_id() -> ClusterId:
    return ClusterId(_word(12))


def new_group_id() -> GroupId:
    return GroupId(str(uuid.uuid4()))


def new_node_id() -> NodeId:
    return NodeId(str(uuid.uuid4()))


def new_logical_id() -> LogicalId:
    return LogicalId(str(uuid.uuid4()))


def new_job_id() -> JobId:
    return JobId(f"job-{_word(12)}")


def new_process_id() -> ProcessId:
    return ProcessId(f"p-{_word(12)}")


def new_attachment_id(of: str) -> str:
    """``eni-attach-`` or ``vol-attach-`` and 17 hex digits."""
    return f"{of}-attach-{uuid.uuid4().hex[:17]}"


def new_operation_id() -> OperationId:
    return OperationId(str(uuid.uuid4()))


def new_health_check_id() -> HealthCheckId:
    return HealthCheckId(str(uuid.uuid4()))


def new_condition_id() -> ConditionId:
    return ConditionId(f"cond-{_word(12)}")


def new_hold_id() -> HoldId:
    return HoldId(f"hold-{_word(12)}")


def new_check_id() -> CheckId:
    return CheckId(f"check-{_word(12)}")


def new_update_id() -> UpdateId:
    return UpdateId(str(uuid.uuid4()))


def new_event_id() -> EventId:
    return EventId(str(uuid.uuid4()))


def new_access_key_id() -> AccessKeyId:
    return AccessKeyId("AKIA" + "".join(secrets.choice(_KEY_ALPHABET) for _ in range(16)))


def new_token_id() -> AccessKeyId:
    return AccessKeyId(f"tok-{_word(12)}")


def new_secret() -> str:
    """What an access key signs with: 40 characters, as AWS's, 238 bits."""
    return "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(40))


def new_revised_id() -> RevisedId:
    return RevisedId(_word(12))


def new_fault_id() -> FaultId:
    return FaultId(f"fault-{_word(12)}")


def checkpoint_id(namespace: str, step: int) -> CheckpointId:
    return CheckpointId(f"{namespace}/{step}")


def new_export_id() -> ExportId:
    return ExportId(f"export-{_word(12)}")


def new_token() -> str:
    """256 bits, URL-safe: a bearer token, a boot token, a rendezvous token."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """How a token is kept at rest. Tokens carry 256 bits, so a plain SHA-256 cannot be searched."""
    return hashlib.sha256(token.encode()).hexdigest()


def cluster_arn(region: str, account_id: str, cluster_id: ClusterId) -> str:
    return f"arn:aws:sagemaker:{region}:{account_id}:cluster/{cluster_id}"


def scheduler_config_arn(region: str, account_id: str, config_id: RevisedId) -> str:
    return f"arn:aws:sagemaker:{region}:{account_id}:cluster-scheduler-config/{config_id}"


def compute_quota_arn(region: str, account_id: str, quota_id: RevisedId) -> str:
    return f"arn:aws:sagemaker:{region}:{account_id}:compute-quota/{quota_id}"
