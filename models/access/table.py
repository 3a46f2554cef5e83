"""Who may call: access keys (SigV4) and bearer tokens."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from models.access.states import KeyState, Kind, Role
from models.base import Base
from models.ids import AccessKeyId


class Credential(Base):
    """An access key (``AKIA…``) or a token (``tok-…``), by ``kind``.

    ``sealed_secret`` is an access key's secret, encrypted under the master key with the key's id as associated data; ``digest`` is how a token is
    kept. ``team`` bounds what the holder sees to what is its team's and what is shared; None sees everything. ``valid_until`` is set by a
    rotation that lets the old credential live on for a while. ``last_used`` is written once a minute at most.
    """

    __tablename__ = "credential"

    id: Mapped[AccessKeyId] = mapped_column(primary_key=True)
    kind: Mapped[Kind]
    name: Mapped[str]
    role: Mapped[Role]
    team: Mapped[str | None]
    account_id: Mapped[str]
    sealed_secret: Mapped[str | None]
    digest: Mapped[str | None] = mapped_column(unique=True)
    state: Mapped[KeyState]
    created_by: Mapped[str | None]
    created_at: Mapped[datetime]
    valid_until: Mapped[datetime | None]
    last_used: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
