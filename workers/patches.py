"""Starts the software updates whose time has come: on a schedule, or because a newer release is there.

Safe to repeat: what was concluded is written in the transaction that starts an update, under the cluster's lock.
"""

from __future__ import annotations

import logging
from datetime import datetime

from sqlalchemy.orm import Session

from models.alarm import queries as alarms
from models.cluster import queries as clusters
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import InstanceGroup
from models.health import queries as health
from models.image import queries as images
from models.image.queries import Releases
from models.session import unit_of_work
from models.software import queries
from models.software.changes import GroupWish, request_software, settle_schedule
from workers.plane import Plane
from workers.plans import patching as plans

log = logging.getLogger(__name__)
_SERVING = (GroupState.IN_SERVICE, GroupState.DEGRADED)


def start_due(plane: Plane) -> int:
    """Looks at every cluster with a group that is updated by itself; returns how many updates were started.

    A cluster that cannot be looked at does not keep the others waiting.
    """
    with unit_of_work(plane.sessions) as session:
        waiting = queries.clusters_with_schedules(session)
    started = 0
    for cluster_id in waiting:
        try:
            with unit_of_work(plane.sessions) as session:
                started += _look(session, cluster_id, plane.clock.now())
        except Exception:
            log.exception("cluster %s: whether its software is to be updated cannot be told now", cluster_id)
    return started


def _look(session: Session, cluster_id: str, now: datetime) -> bool:
    cluster = clusters.get(session, cluster_id, lock=True)
    if cluster.state is not ClusterState.IN_SERVICE or health.on_demand(session, cluster_id) is not None:
        return False
    known = images.releases(session)
    wishes, causes = [], set()
    for group in clusters.groups(session, cluster_id):
        outcome = plans.look(_seen(session, group, known), now)
        settle_schedule(group, outcome.kept.write())
        if outcome.start is not None:
            start = outcome.start
            wishes.append(GroupWish(group, start.image, deployment=dict(start.deployment), patching=dict(start.patching)))
            causes.add(start.why)
    if wishes:
        log.info("cluster %s: %d groups are updated: %s", cluster.name, len(wishes), "; ".join(sorted(causes)))
        request_software(session, cluster, wishes, cause="; ".join(sorted(causes)), now=now)
    return bool(wishes)


def _seen(session: Session, group: InstanceGroup, known: Releases) -> plans.Seen:
    newer = known.newer(group.image_wanted)
    config = group.spec.get("ScheduledUpdateConfig") or group.spec.get("AutoPatchConfig") or {}
    named = [alarm["AlarmName"] for alarm in config.get("DeploymentConfig", {}).get("AutoRollbackConfiguration", ())]
    return plans.Seen(
        spec=group.spec,
        kept=plans.Kept.read(group.patching),
        newer=None if newer is None else newer.version,
        may_start=group.state in _SERVING and not alarms.ringing(session, named),
    )
