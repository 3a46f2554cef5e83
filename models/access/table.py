"""Who may call: access keys (SigV4) and bearer tokens."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from models.access.states import KeyState
from models.base import Base
from models.ids import AccessKeyId


class AccessKey(Base):
    """``sealed_secret`` is the secret, encrypted under the master key with the key's id as associated data."""

    __tablename__ = "access_key"

    id: Mapped[AccessKeyId] = mapped_column(primary_key=True)
    sealed_secret: Mapped[str]
    account_id: Mapped[str]
    state: Mapped[KeyState]
    created_at: Mapped[datetime]


class ApiToken(Base):
    """A bearer token, kept as its digest."""

    __tablename__ = "api_token"

    digest: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[str]
    state: Mapped[KeyState]
    created_at: Mapped[datetime]
