"""repeated requests; volumes and interfaces of nodes"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "replay",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("answer", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", "token", name=op.f("pk_replay")),
    )
    op.create_index(op.f("ix_replay_at"), "replay", ["at"])
    for column in _node_columns():
        op.add_column("node", column)
        if not column.nullable:
            op.alter_column("node", column.name, server_default=None)
    op.create_index(op.f("ix_node_move_to"), "node", ["move_to"])
    op.create_foreign_key(op.f("fk_node_move_to"), "node", "instance_group", ["move_to"], ["id"])


def downgrade() -> None:
    op.drop_constraint(op.f("fk_node_move_to"), "node", type_="foreignkey")
    op.drop_index(op.f("ix_node_move_to"), "node")
    for column in reversed(_node_columns()):
        op.drop_column("node", column.name)
    op.drop_table("replay")


def _node_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("image", sa.Text(), nullable=True),
        sa.Column("starts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("host_start", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("boot_start", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("restart", sa.String(length=32), nullable=True),
        sa.Column("restart_image", sa.Text(), nullable=True),
        sa.Column("restart_drain_s", sa.Integer(), nullable=True),
        sa.Column("restart_is_forced", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("is_replaced_on_request", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("move_to", sa.Text(), nullable=True),
    ]
