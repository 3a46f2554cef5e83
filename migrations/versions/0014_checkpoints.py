"""checkpoints: namespaces, steps, copies of their shards, memory tiers, exports"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoint_namespace",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("memory_every", sa.BigInteger(), nullable=True),
        sa.Column("durable_every", sa.BigInteger(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("why_step", sa.BigInteger(), nullable=False),
        sa.Column("stall_s", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("nbytes", sa.BigInteger(), nullable=True),
        sa.Column("mtbf_s", sa.Double(), nullable=True),
        sa.Column("told_step", sa.BigInteger(), nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_checkpoint_namespace_job_id")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_checkpoint_namespace")),
    )
    op.create_index(op.f("ix_checkpoint_namespace_job_id"), "checkpoint_namespace", ["job_id"])
    op.create_table(
        "checkpoint_export",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("format", sa.String(length=32), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reconcile_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_checkpoint_export_job_id")),
        sa.ForeignKeyConstraint(["namespace"], ["checkpoint_namespace.name"], name=op.f("fk_checkpoint_export_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint_export")),
    )
    op.create_index(op.f("ix_checkpoint_export_job_id"), "checkpoint_export", ["job_id"])
    op.create_index(op.f("ix_checkpoint_export_reconcile_at"), "checkpoint_export", ["reconcile_at"])
    op.create_table(
        "checkpoint_step",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("save", sa.Text(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=True),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("is_drain_wanted", sa.Boolean(), nullable=False),
        sa.Column("durable_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("durable_save", sa.Text(), nullable=True),
        sa.Column("durable_bytes", sa.BigInteger(), nullable=True),
        sa.Column("durable_told_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reconcile_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["namespace"], ["checkpoint_namespace.name"], name=op.f("fk_checkpoint_step_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint_step")),
    )
    op.create_index(
        "ix_checkpoint_step_durable", "checkpoint_step", ["namespace", "step"], postgresql_where=sa.text("durable_at IS NOT NULL")
    )
    op.create_index(op.f("ix_checkpoint_step_reconcile_at"), "checkpoint_step", ["reconcile_at"])
    op.create_index("uq_checkpoint_step_namespace_step", "checkpoint_step", ["namespace", "step"], unique=True)
    op.create_table(
        "memory_tier",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("plan", sa.BigInteger(), nullable=False),
        sa.Column("allocated_bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_bytes", sa.BigInteger(), nullable=False),
        sa.Column("backlog_bytes", sa.BigInteger(), nullable=False),
        sa.Column("waiting_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outage", sa.Text(), nullable=True),
        sa.Column("outage_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refusals", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_memory_tier_node_id")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_memory_tier")),
    )
    op.create_table(
        "checkpoint_copy",
        sa.Column("step_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("save", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=True),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_checkpoint_copy_node_id")),
        sa.ForeignKeyConstraint(["step_id"], ["checkpoint_step.id"], name=op.f("fk_checkpoint_copy_step_id")),
        sa.PrimaryKeyConstraint("step_id", "index", "node_id", "save", name=op.f("pk_checkpoint_copy")),
    )
    op.create_index("ix_checkpoint_copy_node_state", "checkpoint_copy", ["node_id", "state"])


def downgrade() -> None:
    for name in ("checkpoint_copy", "memory_tier", "checkpoint_step", "checkpoint_export", "checkpoint_namespace"):
        op.drop_table(name)
