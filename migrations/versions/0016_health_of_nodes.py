"""nodes that heal: schedulability, labels, taints, evacuation, capacity; faults of accelerators"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    word, moment = sa.String(32), sa.TIMESTAMP(timezone=True)
    op.add_column("node", sa.Column("schedulability", word, nullable=False, server_default="Schedulable"))
    op.add_column("node", sa.Column("labels", postgresql.JSONB(), nullable=False, server_default="{}"))
    op.add_column("node", sa.Column("taints", postgresql.JSONB(), nullable=False, server_default="[]"))
    op.add_column("node", sa.Column("leave_by", moment, nullable=True))
    op.add_column("node", sa.Column("leave_why", sa.Text(), nullable=True))
    op.add_column("node", sa.Column("capacity_type", word, nullable=False, server_default="on-demand"))
    op.add_column("node", sa.Column("zone", sa.Text(), nullable=True))
    for column in ("schedulability", "labels", "taints", "capacity_type"):
        op.alter_column("node", column, server_default=None)
    for column in ("code", "device"):
        op.add_column("fault", sa.Column(column, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for column in ("device", "code"):
        op.drop_column("fault", column)
    for column in ("zone", "capacity_type", "leave_why", "leave_by", "taints", "labels", "schedulability"):
        op.drop_column("node", column)
