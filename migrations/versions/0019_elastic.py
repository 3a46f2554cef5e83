"""elastic jobs: the size that is wished, the one that is allowed, what is waited for"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("wish", sa.Integer(), nullable=True))
    op.execute("UPDATE job SET wish = replicas")
    op.alter_column("job", "wish", nullable=False)
    op.add_column("job", sa.Column("wished_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("job", sa.Column("ceiling", sa.Integer(), nullable=True))
    op.add_column("job", sa.Column("ceiling_why", sa.Text(), nullable=True))
    op.add_column("job", sa.Column("awaits", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("job", sa.Column("awaits_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column("job", sa.Column("resizes", sa.Integer(), nullable=False, server_default="0"))
    for column in ("awaits", "resizes"):
        op.alter_column("job", column, server_default=None)


def downgrade() -> None:
    for column in ("resizes", "awaits_since", "awaits", "ceiling_why", "ceiling", "wished_at", "wish"):
        op.drop_column("job", column)
