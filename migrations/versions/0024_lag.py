"""lag: what is told of ranks that hold the others up"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_process", sa.Column("lag", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("job_process", "lag")
