"""ledger: sums of each generation's steps, and what of a step was spent waiting for a save"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_SUMS = ("fresh_steps", "trained_us", "stalled_us")


def upgrade() -> None:
    op.add_column("step", sa.Column("stall_s", sa.Double(), nullable=False, server_default="0"))
    op.alter_column("step", "stall_s", server_default=None)
    for name in _SUMS:
        op.add_column("generation", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
        op.alter_column("generation", name, server_default=None)
    for name in ("fresh_at", "last_at"):
        op.add_column("generation", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    # What jobs have done before this version is theirs, too.
    op.execute(
        """
        UPDATE generation SET fresh_steps = sums.steps, trained_us = sums.us, fresh_at = sums.first, last_at = sums.last
        FROM (
            SELECT job_id, generation, count(*) AS steps, sum(round(seconds * 1000000)) AS us,
                   min("at" - make_interval(secs => seconds)) AS first, max("at") AS last
            FROM step GROUP BY job_id, generation
        ) AS sums
        WHERE sums.job_id = generation.job_id AND sums.generation = generation.number
        """
    )


def downgrade() -> None:
    for name in (*_SUMS, "fresh_at", "last_at"):
        op.drop_column("generation", name)
    op.drop_column("step", "stall_s")
