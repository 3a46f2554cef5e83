"""roles, teams and names of credentials; teams of clusters and jobs; the audit log"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_STATE = sa.Enum("active", "revoked", name="keystate", native_enum=False, length=32)
_LIVE = sa.text("state NOT IN ('succeeded', 'failed', 'stopped')")


def upgrade() -> None:
    op.drop_table("api_token")
    op.drop_table("access_key")
    op.create_table(
        "credential",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Enum("access_key", "token", name="kind", native_enum=False, length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Enum("viewer", "operator", "admin", name="role", native_enum=False, length=32), nullable=False),
        sa.Column("team", sa.Text(), nullable=True),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("sealed_secret", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("state", _STATE, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("valid_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credential")),
        sa.UniqueConstraint("digest", name=op.f("uq_credential_digest")),
    )
    op.add_column("cluster", sa.Column("team", sa.Text(), nullable=True))
    op.add_column("job", sa.Column("team", sa.Text(), nullable=True))
    # A job's name is taken within its team: whoever cannot see a job must not meet its name either.
    op.drop_index("uq_job_live_name", table_name="job")
    op.create_index(
        "uq_job_live_name",
        "job",
        ["cluster_id", "team", "name"],
        unique=True,
        postgresql_where=_LIVE,
        postgresql_nulls_not_distinct=True,
    )
    op.create_index("ix_event_call", "event", ["at", "sequence"], postgresql_where=sa.text("about = 'Call'"))


def downgrade() -> None:
    op.drop_index("ix_event_call", table_name="event")
    op.drop_index("uq_job_live_name", table_name="job")
    op.create_index("uq_job_live_name", "job", ["cluster_id", "name"], unique=True, postgresql_where=_LIVE)
    op.drop_column("job", "team")
    op.drop_column("cluster", "team")
    op.drop_table("credential")
    op.create_table(
        "access_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sealed_secret", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("state", _STATE, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_access_key")),
    )
    op.create_table(
        "api_token",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("state", _STATE, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_token")),
    )
