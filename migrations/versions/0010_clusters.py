"""what a cluster and its groups are further specified as"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("instance_group", sa.Column("minimum_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column("instance_group", sa.Column("is_restricted", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.alter_column("instance_group", "is_restricted", server_default=None)


def downgrade() -> None:
    op.drop_column("instance_group", "is_restricted")
    op.drop_column("instance_group", "minimum_since")
