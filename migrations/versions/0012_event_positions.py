"""the order in which events can be read without missing one, and a notification for each transaction that has some"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("event", sa.Column("written_in", sa.BigInteger(), server_default=sa.text("txid_current()"), nullable=False))
    op.create_index("ix_event_written", "event", ["written_in", "sequence"])
    op.execute(
        "CREATE FUNCTION everstep_tell_of_events() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_notify('everstep_event', ''); RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER everstep_tell_of_events AFTER INSERT ON event FOR EACH STATEMENT EXECUTE FUNCTION everstep_tell_of_events()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER everstep_tell_of_events ON event")
    op.execute("DROP FUNCTION everstep_tell_of_events()")
    op.drop_index("ix_event_written", "event")
    op.drop_column("event", "written_in")
