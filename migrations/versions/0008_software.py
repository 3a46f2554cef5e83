"""image releases, software updates, alarms, health checks"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "image_release",
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("image_id", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("is_security", sa.Boolean(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_image_release")),
    )
    op.create_index(op.f("ix_image_release_image_id"), "image_release", ["image_id"])
    op.add_column("instance_group", sa.Column("image", sa.Text(), nullable=True))
    op.add_column("instance_group", sa.Column("image_wanted", sa.Text(), nullable=True))
    op.add_column(
        "instance_group", sa.Column("patching", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    )
    op.alter_column("instance_group", "patching", server_default=None)
    op.add_column("node", sa.Column("operation_id", sa.Text(), nullable=True))
    op.create_index("ix_node_operation_id", "node", ["operation_id"])
    op.drop_index("ix_operation_cluster_id", "operation")
    op.create_index("ix_operation_cluster_at", "operation", ["cluster_id", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_operation_cluster_at", "operation")
    op.create_index("ix_operation_cluster_id", "operation", ["cluster_id"])
    op.drop_index("ix_node_operation_id", "node")
    op.drop_column("node", "operation_id")
    op.drop_column("instance_group", "patching")
    op.drop_column("instance_group", "image_wanted")
    op.drop_column("instance_group", "image")
    op.drop_index(op.f("ix_image_release_image_id"), "image_release")
    op.drop_table("image_release")
