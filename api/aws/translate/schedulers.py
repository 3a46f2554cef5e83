"""Scheduler configurations between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.aws.translate import revised
from api.aws.translate.tags import read_tags
from api.operations.revising import RevisedView, Wanted
from api.operations.schedulers import SchedulerChange, SchedulerWish
from models.revised import Revised
from models.scheduler.table import SchedulerConfig

NOUN: Final = "ClusterSchedulerConfig"
COMPONENTS: Final = ("PriorityClasses", "FairShare", "IdleResourceSharing")
"""Parts of a configuration whose state is told one by one."""


def read_create(members: Mapping[str, Any]) -> SchedulerWish:
    return SchedulerWish(
        name=members["Name"],
        cluster_arn=members["ClusterArn"],
        config=members["SchedulerConfig"],
        description=members.get("Description"),
        tags=read_tags(members.get("Tags", ())),
    )


def read_update(members: Mapping[str, Any]) -> SchedulerChange:
    return SchedulerChange(
        config_id=read_id(members),
        seen=members["TargetVersion"],
        config=members.get("SchedulerConfig"),
        description=members.get("Description"),
    )


def read_wanted(members: Mapping[str, Any]) -> Wanted:
    return revised.read_wanted(members, NOUN)


def read_id(members: Mapping[str, Any]) -> str:
    config_id: str = members["ClusterSchedulerConfigId"]
    return config_id


def write_made(config: Revised) -> dict[str, Any]:
    return revised.write_made(config, NOUN)


def write_updated(config: Revised) -> dict[str, Any]:
    return revised.write_updated(config, NOUN)


def write_description(view: RevisedView) -> dict[str, Any]:
    told = revised.write_description(view, NOUN)
    given = view.revision.settings["SchedulerConfig"]
    return {**told, "StatusDetails": {part: told["Status"] for part in COMPONENTS if part in given}}


def write_listing(configs: Sequence[SchedulerConfig], _members: Mapping[str, Any]) -> dict[str, Any]:
    return {"ClusterSchedulerConfigSummaries": [revised.write_summary(config, NOUN) for config in configs]}
