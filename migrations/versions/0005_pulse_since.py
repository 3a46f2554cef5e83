"""since when pulses have come without a gap"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pulse", sa.Column("since", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()))
    op.alter_column("pulse", "since", server_default=None)


def downgrade() -> None:
    op.drop_column("pulse", "since")
