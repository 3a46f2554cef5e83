"""conditions of nodes, and holds of repairs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    word, moment = sa.String(32), sa.DateTime(timezone=True)
    op.create_table(
        "condition",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("logical_id", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=True),
        sa.Column("occurrence", sa.Text(), nullable=False),
        sa.Column("source", word, nullable=False),
        sa.Column("state", word, nullable=False),
        sa.Column("fault_class", word, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("vendor", word, nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("seen", sa.Integer(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("repair", word, nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("at", moment, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("told_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.Column("state_since", moment, nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_condition_cluster_id")),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_condition_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_condition")),
        sa.UniqueConstraint("sequence", name=op.f("uq_condition_sequence")),
    )
    op.create_index("uq_condition_occurrence", "condition", ["node_id", "occurrence"], unique=True)
    op.create_index("ix_condition_place", "condition", ["logical_id", "code", "created_at"])
    op.create_index("ix_condition_open", "condition", ["node_id"], postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index("ix_condition_cluster", "condition", ["cluster_id", "sequence"])
    _create_holds(moment)
    op.add_column("job_process", sa.Column("device_fault", sa.Text(), nullable=True))


def _create_holds(moment: sa.DateTime) -> None:
    op.create_table(
        "repair_hold",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("told_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.Column("ended_why", sa.Text(), nullable=True),
        sa.Column("resumed_until", moment, nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", moment, nullable=True),
        sa.Column("reconcile_at", moment, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_repair_hold_cluster_id")),
        sa.ForeignKeyConstraint(["group_id"], ["instance_group.id"], name=op.f("fk_repair_hold_group_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repair_hold")),
    )
    op.create_index("uq_repair_hold_open", "repair_hold", ["group_id"], unique=True, postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index("ix_repair_hold_group", "repair_hold", ["group_id", "created_at"])
    op.create_index(op.f("ix_repair_hold_cluster_id"), "repair_hold", ["cluster_id"])
    op.create_index(op.f("ix_repair_hold_reconcile_at"), "repair_hold", ["reconcile_at"])


def downgrade() -> None:
    op.drop_column("job_process", "device_fault")
    op.drop_table("repair_hold")
    op.drop_table("condition")
