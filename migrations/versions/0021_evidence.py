"""evidence: what is told of processes that make no progress"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_process", sa.Column("hang", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("job_process", "hang")
