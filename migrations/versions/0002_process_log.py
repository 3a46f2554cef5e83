"""the last lines of every process"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "process_log",
        sa.Column("process_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["process_id"], ["job_process.id"], name=op.f("fk_process_log_process_id")),
        sa.PrimaryKeyConstraint("process_id", name=op.f("pk_process_log")),
    )


def downgrade() -> None:
    op.drop_table("process_log")
