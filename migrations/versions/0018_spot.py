"""spot: notices, prices, rates of interruption, policies, loans"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_WORD = sa.String(length=32)
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _notices()
    _prices()
    _policies()


def _notices() -> None:
    op.create_table(
        "spot_notice",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("kind", _WORD, nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("announced_at", _MOMENT, nullable=False),
        sa.Column("deadline", _MOMENT, nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", _MOMENT, nullable=True),
        sa.Column("reconcile_at", _MOMENT, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("state_since", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_spot_notice_cluster_id")),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_spot_notice_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spot_notice")),
    )
    op.create_index(op.f("ix_spot_notice_cluster_id"), "spot_notice", ["cluster_id"])
    op.create_index(op.f("ix_spot_notice_node_id"), "spot_notice", ["node_id"])
    op.create_index(op.f("ix_spot_notice_reconcile_at"), "spot_notice", ["reconcile_at"])
    op.create_index("ix_spot_notice_of_type", "spot_notice", ["instance_type", "zone", "announced_at"])
    is_open = sa.text("state IN ('announced', 'evacuating')")
    op.create_index("uq_spot_notice_open", "spot_notice", ["node_id", "kind"], unique=True, postgresql_where=is_open)


def _prices() -> None:
    op.create_table(
        "price",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("market", _WORD, nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("per_hour", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price")),
        sa.UniqueConstraint("market", "instance_type", "zone", "at", name=op.f("uq_price_market_instance_type_zone_at")),
    )
    op.create_index("ix_price_listed", "price", ["at", "id"])
    op.create_table(
        "interruption_rate",
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("per_hour", sa.Double(), nullable=False),
        sa.Column("interruptions", sa.Double(), nullable=False),
        sa.Column("hours", sa.Double(), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("instance_type", "zone", name=op.f("pk_interruption_rate")),
    )


def _policies() -> None:
    op.create_table(
        "spot_policy",
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("fallback_groups", postgresql.JSONB(), nullable=False),
        sa.Column("fall_back_after_s", sa.Integer(), nullable=False),
        sa.Column("max_price_per_hour", sa.Numeric(), nullable=True),
        sa.Column("return_to_spot", sa.Boolean(), nullable=False),
        sa.Column("return_after_s", sa.Integer(), nullable=False),
        sa.Column("leave_on_rebalance", sa.Boolean(), nullable=False),
        sa.Column("changed_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_spot_policy_cluster_id")),
        sa.PrimaryKeyConstraint("cluster_id", "group_name", name=op.f("pk_spot_policy")),
    )
    op.create_table(
        "spot_loan",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("lender_id", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("since", _MOMENT, nullable=False),
        sa.Column("returned_at", _MOMENT, nullable=True),
        sa.Column("returned_why", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_spot_loan_cluster_id")),
        sa.ForeignKeyConstraint(["group_id"], ["instance_group.id"], name=op.f("fk_spot_loan_group_id")),
        sa.ForeignKeyConstraint(["lender_id"], ["instance_group.id"], name=op.f("fk_spot_loan_lender_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spot_loan")),
    )
    op.create_index("ix_spot_loan_open", "spot_loan", ["cluster_id"], postgresql_where=sa.text("returned_at IS NULL"))


def downgrade() -> None:
    for table in ("spot_loan", "spot_policy", "interruption_rate", "price", "spot_notice"):
        op.drop_table(table)
