"""A cluster and its groups as their description shows them: values, not rows. Made from one statement, ten times as fast as rows are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.cluster.states import ClusterState, GroupState


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """What ``models.cluster.table.Cluster`` says of the same name."""

    id: str
    arn: str
    name: str
    state: ClusterState
    settings: dict[str, Any]
    is_continuous: bool
    failure_message: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """What ``models.cluster.table.InstanceGroup`` says of the same name; ``serving`` nodes of it serve."""

    id: str
    name: str
    state: GroupState
    target_count: int
    min_count: int
    is_restricted: bool
    spec: dict[str, Any]
    image: str | None
    image_wanted: str | None
    update_id: str | None
    patching: dict[str, Any]
    settled: dict[str, Any] | None
    serving: int

    @property
    def is_flexible(self) -> bool:
        return "InstanceRequirements" in self.spec
