"""What a caller would have to have seen to change something knowingly: a word that changes when what was asked for changes, and then only.

Counts of nodes, states and times are none of it: a cluster may grow towards its target for hours without a new revision.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from api.operations import revising
from api.operations.work import Work
from models import revised
from models.cluster import queries as clusters
from models.cluster.states import GroupState
from models.quota.table import ComputeQuota
from models.revised import Head
from models.scheduler.table import SchedulerConfig

_IN_COLUMNS: Final = ("InstanceCount", "MinInstanceCount")
"""Members of a group's specification that its columns supersede."""


def of_cluster(work: Work, name_or_arn: str, *, lock: bool = False) -> str:
    """``lock`` keeps the cluster's row for the rest of the transaction: nobody changes what it is asked to be meanwhile. Raises NotFound."""
    cluster = clusters.find(work.session, name_or_arn, lock=lock)
    groups = [
        {
            "name": group.name,
            "type": group.instance_type,
            "target": group.target_count,
            "least": group.min_count,
            "spec": {name: value for name, value in group.spec.items() if name not in _IN_COLUMNS},
        }
        for group in clusters.groups(work.session, cluster.id)
        if group.state is not GroupState.DELETING
    ]
    return _digest({"id": cluster.id, "settings": cluster.settings, "groups": groups})


def of_scheduler_config(work: Work, config_id: str, *, lock: bool = False) -> str:
    """As ``of_cluster``, of a scheduler configuration. Raises NotFound."""
    return _of_revised(work, SchedulerConfig, config_id, lock=lock)


def of_quota(work: Work, quota_id: str, *, lock: bool = False) -> str:
    """As ``of_cluster``, of a compute quota. Raises NotFound."""
    return _of_revised(work, ComputeQuota, quota_id, lock=lock)


def _of_revised(work: Work, head: type[Head], wanted_id: str, *, lock: bool) -> str:
    row = revising.locked(work, head, wanted_id) if lock else revised.get(work.session, head, wanted_id)
    return f"{row.id}-{row.revision}"


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
