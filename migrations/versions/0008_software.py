"""image releases, software updates, alarms, health checks"""

from __future__ import annotations

from typing import Any

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
    op.add_column("instance_group", sa.Column("update_id", sa.Text(), nullable=True))
    op.add_column("instance_group", sa.Column("image_wanted", sa.Text(), nullable=True))
    op.add_column(
        "instance_group", sa.Column("patching", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    )
    op.alter_column("instance_group", "patching", server_default=None)
    op.create_table(
        "alarm",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_alarm")),
    )
    op.create_table(
        "software_update",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("rolled_back_because", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        *_lease(),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_software_update_cluster_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_software_update")),
    )
    op.create_index(op.f("ix_software_update_reconcile_at"), "software_update", ["reconcile_at"])
    op.create_index(
        "uq_software_update_open", "software_update", ["cluster_id"], unique=True, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "group_update",
        sa.Column("update_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("image_from", sa.Text(), nullable=True),
        sa.Column("image_to", sa.Text(), nullable=False),
        sa.Column("deployment", postgresql.JSONB(), nullable=False),
        sa.Column("patching", postgresql.JSONB(), nullable=False),
        sa.Column("batch", postgresql.JSONB(), nullable=False),
        sa.Column("skipped", postgresql.JSONB(), nullable=False),
        sa.Column("batch_done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["update_id"], ["software_update.id"], name=op.f("fk_group_update_update_id")),
        sa.ForeignKeyConstraint(["group_id"], ["instance_group.id"], name=op.f("fk_group_update_group_id")),
        sa.PrimaryKeyConstraint("update_id", "group_id", name=op.f("pk_group_update")),
    )
    op.create_table(
        "health_check",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        *_lease(),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_health_check_cluster_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_health_check")),
    )
    op.create_index(op.f("ix_health_check_reconcile_at"), "health_check", ["reconcile_at"])
    op.create_index(
        "uq_health_check_on_demand",
        "health_check",
        ["cluster_id"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL AND operation_id IS NOT NULL"),
    )
    op.create_table(
        "node_check",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("health_check_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("kinds", postgresql.JSONB(), nullable=False),
        sa.Column("order", postgresql.JSONB(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("findings", postgresql.JSONB(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["health_check_id"], ["health_check.id"], name=op.f("fk_node_check_health_check_id")),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_node_check_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_check")),
        sa.UniqueConstraint("sequence", name=op.f("uq_node_check_sequence")),
    )
    op.create_index(op.f("ix_node_check_health_check_id"), "node_check", ["health_check_id"])
    op.create_index("ix_node_check_node_state", "node_check", ["node_id", "state"])
    op.add_column("node", sa.Column("held_for", sa.Text(), nullable=True))
    op.add_column("node", sa.Column("software_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("node", sa.Column("operation_id", sa.Text(), nullable=True))
    op.create_index("ix_node_operation_id", "node", ["operation_id"])
    op.drop_index("ix_operation_cluster_id", "operation")
    op.create_index("ix_operation_cluster_at", "operation", ["cluster_id", "created_at", "id"])


def _lease() -> tuple[sa.Column[Any], ...]:
    """The columns of a row that one worker at a time reconciles."""
    return (
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reconcile_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    op.drop_index("ix_operation_cluster_at", "operation")
    op.create_index("ix_operation_cluster_id", "operation", ["cluster_id"])
    op.drop_index("ix_node_operation_id", "node")
    op.drop_column("node", "operation_id")
    op.drop_column("node", "software_at")
    op.drop_column("node", "held_for")
    op.drop_table("node_check")
    op.drop_table("health_check")
    op.drop_table("group_update")
    op.drop_table("software_update")
    op.drop_table("alarm")
    op.drop_column("instance_group", "patching")
    op.drop_column("instance_group", "update_id")
    op.drop_column("instance_group", "image_wanted")
    op.drop_column("instance_group", "image")
    op.drop_index(op.f("ix_image_release_image_id"), "image_release")
    op.drop_table("image_release")
