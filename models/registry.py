"""Imports every table once. For Alembic only: nothing else needs to know them all."""

from __future__ import annotations

from models import events, pulse, replay
from models.access import table as access
from models.alarm import table as alarm
from models.base import Base
from models.checkpoint import table as checkpoint
from models.cluster import table as cluster
from models.condition import table as condition
from models.directive import table as directive
from models.fault import table as fault
from models.health import table as health
from models.image import table as image
from models.job import table as job
from models.node import table as node
from models.operation import table as operation
from models.quota import table as quota
from models.scheduler import table as scheduler
from models.software import table as software
from models.spot import table as spot
from models.volume import table as volume

metadata = Base.metadata

__all__ = [
    "access",
    "alarm",
    "checkpoint",
    "cluster",
    "condition",
    "directive",
    "events",
    "fault",
    "health",
    "image",
    "job",
    "metadata",
    "node",
    "operation",
    "pulse",
    "quota",
    "replay",
    "scheduler",
    "software",
    "spot",
    "volume",
]
