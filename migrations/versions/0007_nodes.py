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
    _create_attachments()


def downgrade() -> None:
    op.drop_table("attachment")
    op.drop_constraint(op.f("fk_node_move_to"), "node", type_="foreignkey")
    op.drop_index(op.f("ix_node_move_to"), "node")
    for column in reversed(_node_columns()):
        op.drop_column("node", column.name)
    op.drop_table("replay")


def _create_attachments() -> None:
    op.create_table(
        "attachment",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("resource_id", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reconcile_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_attachment_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attachment")),
    )
    op.create_index(op.f("ix_attachment_node_id"), "attachment", ["node_id"])
    op.create_index(op.f("ix_attachment_reconcile_at"), "attachment", ["reconcile_at"])
    is_live = sa.text("state <> 'detached'")
    op.create_index("uq_attachment_live_resource", "attachment", ["resource_id"], unique=True, postgresql_where=is_live)


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
