"""raised: what user code raised in a process that lives on"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_process", sa.Column("raised", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("job_process", "raised")
