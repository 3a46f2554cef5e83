"""Compute quotas between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.aws.translate import revised
from api.aws.translate.tags import read_tags
from api.operations.quotas import QuotaChange, QuotaWish
from api.operations.revising import RevisedView, Wanted
from models.quota.table import ComputeQuota
from models.revised import Revised

NOUN: Final = "ComputeQuota"


def read_create(members: Mapping[str, Any]) -> QuotaWish:
    return QuotaWish(
        name=members["Name"],
        cluster_arn=members["ClusterArn"],
        config=members["ComputeQuotaConfig"],
        target=members["ComputeQuotaTarget"],
        activation=members.get("ActivationState", "Enabled"),
        description=members.get("Description"),
        tags=read_tags(members.get("Tags", ())),
    )


def read_update(members: Mapping[str, Any]) -> QuotaChange:
    return QuotaChange(
        quota_id=read_id(members),
        seen=members["TargetVersion"],
        config=members.get("ComputeQuotaConfig"),
        target=members.get("ComputeQuotaTarget"),
        activation=members.get("ActivationState"),
        description=members.get("Description"),
    )


def read_wanted(members: Mapping[str, Any]) -> Wanted:
    return revised.read_wanted(members, NOUN)


def read_id(members: Mapping[str, Any]) -> str:
    quota_id: str = members["ComputeQuotaId"]
    return quota_id


def write_made(quota: Revised) -> dict[str, Any]:
    return revised.write_made(quota, NOUN)


def write_updated(quota: Revised) -> dict[str, Any]:
    return revised.write_updated(quota, NOUN)


def write_description(view: RevisedView) -> dict[str, Any]:
    return revised.write_description(view, NOUN)


def write_listing(quotas: Sequence[ComputeQuota], _members: Mapping[str, Any]) -> dict[str, Any]:
    return {"ComputeQuotaSummaries": [revised.write_summary(quota, NOUN) for quota in quotas]}
