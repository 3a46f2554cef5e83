"""What a caller would have to have seen to change something knowingly: a word that changes when what was asked for changes, and then only.

Counts of nodes, states and times are none of it: a cluster may grow towards its target for hours without a new revision.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.states import GroupState

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


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
