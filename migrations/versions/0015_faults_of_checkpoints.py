"""faults of checkpoints: a shard's copy, and the object store, which is no node's"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("fault", "cluster_id", nullable=True)
    op.alter_column("fault", "node_id", nullable=True)
    op.add_column("fault", sa.Column("namespace", sa.Text(), nullable=True))
    op.add_column("fault", sa.Column("step", sa.BigInteger(), nullable=True))
    op.add_column("fault", sa.Column("shard", sa.BigInteger(), nullable=True))
    op.create_index("ix_fault_outage", "fault", ["state"], postgresql_where=sa.text("kind = 'bucket-outage'"))


def downgrade() -> None:
    op.drop_index("ix_fault_outage", "fault")
    op.drop_column("fault", "shard")
    op.drop_column("fault", "step")
    op.drop_column("fault", "namespace")
    op.execute("DELETE FROM fault WHERE node_id IS NULL")
    op.alter_column("fault", "node_id", nullable=False)
    op.alter_column("fault", "cluster_id", nullable=False)
