"""image releases, software updates, alarms, health checks"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("operation_id", sa.Text(), nullable=True))
    op.create_index("ix_node_operation_id", "node", ["operation_id"])
    op.drop_index("ix_operation_cluster_id", "operation")
    op.create_index("ix_operation_cluster_at", "operation", ["cluster_id", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_operation_cluster_at", "operation")
    op.create_index("ix_operation_cluster_id", "operation", ["cluster_id"])
    op.drop_index("ix_node_operation_id", "node")
    op.drop_column("node", "operation_id")
