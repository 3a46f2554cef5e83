"""What a worker is made of: settings, database, provider, reconcilers. Built once a process, after the fork."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType

from models.access.secrets import boot_token
from models.checkpoint.table import CheckpointExport, CheckpointStep
from models.clock import Clock, WallClock
from models.cluster.table import Cluster
from models.condition.table import RepairHold
from models.health.table import HealthCheck
from models.job.table import Job
from models.node.table import Host, Node
from models.session import Sessions, connect
from models.session import sessions as session_factory
from models.software.table import SoftwareUpdate
from models.spot.table import Notice
from models.volume.table import Attachment
from workers import objects
from workers.driver import Driver, Reconciler
from workers.exports import Exports
from workers.plans.brake import Limits
from workers.plans.job_seen import Patience as JobPatience
from workers.plans.node import Patience as NodePatience
from workers.plans.repair_seen import Policy, Unknown
from workers.providers import registry
from workers.providers.base import Provider
from workers.providers.prices import ListPrices, Prices
from workers.reconcilers.checkpoint import CheckpointReconciler
from workers.reconcilers.cluster import ClusterReconciler
from workers.reconcilers.condition import HoldReconciler
from workers.reconcilers.export import ExportReconciler
from workers.reconcilers.health import HealthReconciler
from workers.reconcilers.host import HostReconciler
from workers.reconcilers.job import JobReconciler
from workers.reconcilers.node import NodeReconciler
from workers.reconcilers.software import SoftwareReconciler
from workers.reconcilers.spot import SpotReconciler
from workers.reconcilers.volume import AttachmentReconciler
from workers.settings import FAST, SLOW, Settings

LANES: Mapping[str, str] = MappingProxyType(
    {
        Job.KIND: FAST,
        Node.KIND: FAST,
        Cluster.KIND: FAST,
        SoftwareUpdate.KIND: FAST,
        HealthCheck.KIND: FAST,
        RepairHold.KIND: FAST,
        Notice.KIND: FAST,
        Host.KIND: SLOW,
        Attachment.KIND: SLOW,
        CheckpointStep.KIND: SLOW,
        CheckpointExport.KIND: SLOW,
    }
)
"""Which queue serves which kind of row. ``host`` is the half of a node that calls its provider."""
_POOL = 2


@dataclass(frozen=True)
class Plane:
    sessions: Sessions
    clock: Clock
    driver: Driver
    provider: Provider
    prices: Prices = field(default_factory=ListPrices.shipped)


def build(settings: Settings, sessions: Sessions, clock: Clock) -> Plane:
    provider = registry.provider(settings)
    node_patience = NodePatience(loss=settings.node_patience, boot=settings.boot_patience)
    policy = _policy(settings)
    reconcilers: dict[str, Reconciler] = {
        Cluster.KIND: ClusterReconciler(),
        Node.KIND: NodeReconciler(node_patience, policy),
        RepairHold.KIND: HoldReconciler(policy.limits),
        Host.KIND: HostReconciler(provider, partial(boot_token, settings.master_key)),
        Attachment.KIND: AttachmentReconciler(provider),
        SoftwareUpdate.KIND: SoftwareReconciler(),
        HealthCheck.KIND: HealthReconciler(),
        Notice.KIND: SpotReconciler(),
        Job.KIND: JobReconciler(JobPatience(reform=settings.reform_patience)),
        CheckpointStep.KIND: CheckpointReconciler(objects.connect(settings)),
        CheckpointExport.KIND: ExportReconciler(Exports(settings.home, _with_endpoint(settings)), settings.object_store_url),
    }
    owner = f"{socket.gethostname()}:{os.getpid()}"
    return Plane(sessions, clock, Driver(sessions, clock, owner, reconcilers), provider, registry.prices(settings))


def _policy(settings: Settings) -> Policy:
    return Policy(
        unknown=Unknown(settings.unknown_fault),
        window=settings.fault_window,
        transients=settings.transient_faults,
        drain=settings.drain_limit,
        quarantine=settings.quarantine,
        limits=Limits(share=settings.repair_brake, window=settings.repair_brake_window),
    )


def _with_endpoint(settings: Settings) -> Mapping[str, str]:
    """What a program that reads the object store gets to read of our environment."""
    named = {"AWS_ENDPOINT_URL": settings.s3_endpoint_url} if settings.s3_endpoint_url else {}
    return {**settings.environ, **named}


@cache
def plane() -> Plane:
    """This process's own. Not to be called before a fork: connections must not be shared."""
    settings = Settings.from_environ()
    return build(settings, session_factory(connect(settings.database_url, pool_size=_POOL)), WallClock())
