"""spare pool: how many free nodes of a group are kept for what is lost"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("instance_group", sa.Column("spare_nodes", sa.Integer(), nullable=True))
    op.add_column("instance_group", sa.Column("sizes_spares", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.alter_column("instance_group", "sizes_spares", server_default=None)


def downgrade() -> None:
    op.drop_column("instance_group", "sizes_spares")
    op.drop_column("instance_group", "spare_nodes")
