"""Postgres notifications: latency, never truth. They leave with the commit of the transaction, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Text, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

NUDGE: Final = "everstep_nudge"
"""Payload ``kind:id``: this row wants a worker's look. Heard by the relay."""
DIRECTIVE: Final = "everstep_directive"
"""Payload: a node's id. Heard by the API process that holds the node's stream."""
EVENT: Final = "everstep_event"
"""No payload: there are new events. A trigger of the table sends it, so that writing an event costs no further round trip."""


def notify(session: Session, channel: str, payload: str) -> None:
    session.execute(select(func.pg_notify(channel, payload)))


def notify_all(session: Session, channel: str, payloads: Sequence[str]) -> None:
    """Many notifications in one statement."""
    payload = func.unnest(cast(payloads, ARRAY(Text))).column_valued("payload")
    session.execute(select(func.pg_notify(channel, payload)))


def nudge(session: Session, kind: str, row_id: str) -> None:
    """Asks for a reconciliation of the row as soon as this transaction has committed."""
    notify(session, NUDGE, f"{kind}:{row_id}")
