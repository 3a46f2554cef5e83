"""faults that were asked for"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fault",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("process_id", sa.Text(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("struck_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_fault_cluster_id")),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_fault_node_id")),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_fault_job_id")),
        sa.ForeignKeyConstraint(["process_id"], ["job_process.id"], name=op.f("fk_fault_process_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fault")),
        sa.UniqueConstraint("sequence", name=op.f("uq_fault_sequence")),
    )
    op.create_index("ix_fault_node_state", "fault", ["node_id", "state"])
    op.create_index(op.f("ix_fault_cluster_id"), "fault", ["cluster_id"])
    op.create_index(op.f("ix_fault_job_id"), "fault", ["job_id"])


def downgrade() -> None:
    op.drop_table("fault")
