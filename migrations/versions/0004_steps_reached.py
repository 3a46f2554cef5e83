"""how far each generation came"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("generation", sa.Column("reached", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("generation", "reached")
