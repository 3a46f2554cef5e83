"""scheduler configurations and compute quotas"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_LIVE = sa.text("state <> 'deleted'")


def upgrade() -> None:
    _revised("scheduler_config")
    _revised("compute_quota", sa.Column("team", sa.Text(), nullable=False))
    op.create_index("uq_compute_quota_live_team", "compute_quota", ["cluster_id", "team"], unique=True, postgresql_where=_LIVE)


def downgrade() -> None:
    for table in ("compute_quota", "scheduler_config"):
        op.drop_table(f"{table}_revision")
        op.drop_table(table)


def _revised(table: str, *more: sa.Column) -> None:
    op.create_table(
        table,
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("arn", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("cluster_arn", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "state", sa.Enum("created", "updated", "deleted", name="revisedstate", native_enum=False, length=32), nullable=False
        ),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        *more,
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f(f"fk_{table}_cluster_id")),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        sa.UniqueConstraint("arn", name=op.f(f"uq_{table}_arn")),
    )
    op.create_index(op.f(f"ix_{table}_cluster_id"), table, ["cluster_id"])
    op.create_index(op.f(f"ix_{table}_created_at"), table, ["created_at"])
    op.create_index(f"uq_{table}_live_name", table, ["cluster_id", "name"], unique=True, postgresql_where=_LIVE)
    op.create_table(
        f"{table}_revision",
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f(f"fk_{table}_revision_cluster_id")),
        sa.ForeignKeyConstraint(["owner_id"], [f"{table}.id"], name=op.f(f"fk_{table}_revision_owner_id")),
        sa.PrimaryKeyConstraint("owner_id", "number", name=op.f(f"pk_{table}_revision")),
    )
    op.create_index(op.f(f"ix_{table}_revision_cluster_id"), f"{table}_revision", ["cluster_id"])
