"""Every SageMaker operation that is served: one table, from which routing, REST and documentation follow."""

from __future__ import annotations

from api.aws.table.attachments import ATTACHMENTS
from api.aws.table.batches import BATCHES
from api.aws.table.clusters import CLUSTERS
from api.aws.table.events import EVENTS
from api.aws.table.health import HEALTH
from api.aws.table.kinds import Table
from api.aws.table.nodes import NODES
from api.aws.table.operations import OPERATIONS
from api.aws.table.quotas import QUOTAS
from api.aws.table.schedulers import SCHEDULERS
from api.aws.table.software import SOFTWARE
from api.aws.table.tags import TAGS

SAGEMAKER: Table = {
    **CLUSTERS,
    **NODES,
    **BATCHES,
    **ATTACHMENTS,
    **SOFTWARE,
    **HEALTH,
    **EVENTS,
    **OPERATIONS,
    **SCHEDULERS,
    **QUOTAS,
    **TAGS,
}
