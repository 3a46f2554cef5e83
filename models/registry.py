"""Imports every table once. For Alembic only: nothing else needs to know them all."""

from __future__ import annotations

from models import events, pulse, replay
from models.access import table as access
from models.base import Base
from models.cluster import table as cluster
from models.directive import table as directive
from models.image import table as image
from models.job import table as job
from models.node import table as node
from models.operation import table as operation
from models.quota import table as quota
from models.scheduler import table as scheduler

metadata = Base.metadata

__all__ = [
    "access",
    "cluster",
    "directive",
    "events",
    "image",
    "job",
    "metadata",
    "node",
    "operation",
    "pulse",
    "quota",
    "replay",
    "scheduler",
]
