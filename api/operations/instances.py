"""The limits of how many instances may be asked for."""

from __future__ import annotations

from api.operations.work import Work
from models.cluster import queries
from models.errors import LimitExceeded


def check_instances(work: Work, *, more: int, cluster_id: str | None = None) -> None:
    """Whether so many more may be asked for, of a cluster if it is there already.

    Raises:
        LimitExceeded: the cluster, or all clusters together, would have too many.
    """
    if more <= 0:
        return
    limit = work.limits.instances_of_cluster
    if limit is not None:
        wanted = more + (queries.instances_asked_for(work.session, cluster_id=cluster_id) if cluster_id else 0)
        _refuse_beyond(limit, wanted, "The number of instances of the cluster", "EVERSTEP_MAX_INSTANCES_PER_CLUSTER")
    limit = work.limits.instances
    if limit is not None:
        wanted = more + queries.instances_asked_for(work.session)
        _refuse_beyond(limit, wanted, "The number of instances of all clusters", "EVERSTEP_MAX_INSTANCES")


def _refuse_beyond(limit: int, wanted: int, what: str, setting: str) -> None:
    if wanted > limit:
        remedy = f"Ask for fewer, delete others first, or have whoever runs this control plane raise {setting}."
        raise LimitExceeded(what=what, wanted=wanted, limit=limit, remedy=remedy)
