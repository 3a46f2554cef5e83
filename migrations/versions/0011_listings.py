"""indexes of listings"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_LISTED = (
    ("ix_cluster_listed", "cluster", ["created_at", "id"], "state <> 'deleted'"),
    ("ix_cluster_listed_by_name", "cluster", [sa.text('name COLLATE "C"'), "id"], "state <> 'deleted'"),
    ("ix_node_listed", "node", ["cluster_id", "created_at", "id"], "state <> 'gone'"),
    ("ix_node_listed_by_group", "node", ["cluster_id", sa.text('group_name COLLATE "C"'), "id"], "state <> 'gone'"),
)
_REPLACED = (("ix_cluster_created_at", "cluster"), ("ix_node_created_at", "node"))


def upgrade() -> None:
    for name, table in _REPLACED:
        op.drop_index(name, table_name=table)
    for name, table, columns, live in _LISTED:
        op.create_index(name, table, columns, postgresql_where=sa.text(live))


def downgrade() -> None:
    for name, table in _REPLACED:
        op.create_index(name, table, ["created_at"])
    for name, table, _, _ in _LISTED:
        op.drop_index(name, table_name=table)
