"""Writes of scheduler configurations. The caller holds the lock of their cluster."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from models import revised
from models.errors import Taken
from models.ids import new_revised_id, scheduler_config_arn
from models.move import advance
from models.revised import REVISED, Change, Place, RevisedState
from models.scheduler.table import SchedulerConfig, SchedulerConfigRevision


def request_config(session: Session, place: Place, name: str, change: Change) -> SchedulerConfig:
    """Makes the first version.

    Raises:
        Taken: the cluster has one of this name.
    """
    if revised.taken(session, SchedulerConfig, place.cluster_id, name=name):
        raise Taken(kind=SchedulerConfig.NOUN, member="Name", value=name)
    made = new_revised_id()
    config = SchedulerConfig(
        id=made, arn=scheduler_config_arn(place.region, place.account_id, made), name=name, **place.beginning(change)
    )
    revised.keep(session, config, SchedulerConfigRevision)
    return config


def request_revision(session: Session, config: SchedulerConfig, change: Change, *, seen: int) -> None:
    """Makes the next version of a locked configuration.

    Raises:
        Outdated: ``seen`` is not the newest version any more.
    """
    revised.revise(session, config, SchedulerConfigRevision, change, seen=seen)


def request_end(session: Session, config: SchedulerConfig, *, now: datetime) -> None:
    """Deletes a locked configuration. Its versions stay in the database, and are shown to nobody."""
    advance(REVISED, config, RevisedState.DELETED, now=now)
    session.flush()


def settle_end(session: Session, cluster_id: str, *, now: datetime) -> None:
    """The cluster is gone, and its configurations with it."""
    for config in revised.of_cluster(session, SchedulerConfig, cluster_id):
        request_end(session, config, now=now)
