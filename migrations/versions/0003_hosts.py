"""a lease of their own for calls to providers; since when a job is halted"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("host_fence", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("node", sa.Column("host_lease_owner", sa.String(length=128), nullable=True))
    op.add_column("node", sa.Column("host_lease_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("node", sa.Column("host_reconcile_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("node", sa.Column("host_attempts", sa.Integer(), nullable=False, server_default="0"))
    word = sa.Enum("alive", "dead", "missing", name="hostword", native_enum=False, length=32)
    op.add_column("node", sa.Column("host_word", word, nullable=True))
    op.add_column("node", sa.Column("host_word_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(op.f("ix_node_host_reconcile_at"), "node", ["host_reconcile_at"])
    op.add_column("job", sa.Column("halted_at", sa.DateTime(timezone=True), nullable=True))
    for column in ("host_fence", "host_attempts"):
        op.alter_column("node", column, server_default=None)


def downgrade() -> None:
    op.drop_column("job", "halted_at")
    for column in ("fence", "lease_owner", "lease_until", "reconcile_at", "attempts", "word", "word_at"):
        op.drop_column("node", f"host_{column}")
