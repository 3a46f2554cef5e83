"""Writes of compute quotas. The caller holds the lock of their cluster."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from models import revised
from models.errors import Taken
from models.ids import compute_quota_arn, new_revised_id
from models.move import advance
from models.quota.table import ComputeQuota, ComputeQuotaRevision
from models.revised import REVISED, Change, Place, RevisedState


def request_quota(session: Session, place: Place, name: str, team: str, change: Change) -> ComputeQuota:
    """Makes the first version.

    Raises:
        Taken: the cluster has a quota of this name, or one for this team.
    """
    if revised.taken(session, ComputeQuota, place.cluster_id, name=name):
        raise Taken(kind=ComputeQuota.NOUN, member="Name", value=name)
    _check_team(session, place.cluster_id, team)
    made = new_revised_id()
    arn = compute_quota_arn(place.region, place.account_id, made)
    quota = ComputeQuota(id=made, arn=arn, name=name, team=team, **place.beginning(change))
    revised.keep(session, quota, ComputeQuotaRevision)
    return quota


def request_revision(session: Session, quota: ComputeQuota, team: str, change: Change, *, seen: int) -> None:
    """Makes the next version of a locked quota.

    Raises:
        Outdated: ``seen`` is not the newest version any more.
        Taken: another quota of the cluster is for this team.
    """
    if team != quota.team and quota.revision == seen:
        _check_team(session, quota.cluster_id, team)
    quota.team = team
    revised.revise(session, quota, ComputeQuotaRevision, change, seen=seen)


def request_end(session: Session, quota: ComputeQuota, *, now: datetime) -> None:
    """Deletes a locked quota. Its versions stay in the database, and are shown to nobody."""
    advance(REVISED, quota, RevisedState.DELETED, now=now)
    session.flush()


def settle_end(session: Session, cluster_id: str, *, now: datetime) -> None:
    """The cluster is gone, and its quotas with it."""
    for quota in revised.of_cluster(session, ComputeQuota, cluster_id):
        request_end(session, quota, now=now)


def _check_team(session: Session, cluster_id: str, team: str) -> None:
    if revised.taken(session, ComputeQuota, cluster_id, team=team):
        raise Taken(kind=ComputeQuota.NOUN, member="TeamName", value=team)
