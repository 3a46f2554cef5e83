"""The declarative base, and the two things that many rows have: a lease and a version."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Dialect, Enum, Integer, MetaData, String, Text, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from models import ids
from models.text import storable

_IDS = (
    ids.AccessKeyId,
    ids.CheckId,
    ids.CheckpointId,
    ids.ClusterId,
    ids.ConditionId,
    ids.EventId,
    ids.ExportId,
    ids.FaultId,
    ids.GroupId,
    ids.HealthCheckId,
    ids.HoldId,
    ids.InstanceId,
    ids.JobId,
    ids.LogicalId,
    ids.NodeId,
    ids.OperationId,
    ids.ProcessId,
    ids.RevisedId,
    ids.UpdateId,
)


def _values(states: type[StrEnum]) -> list[str]:
    return [state.value for state in states]


class Words(TypeDecorator[str]):
    """Text that may come from anywhere: what Postgres cannot hold is replaced, so that no fact is refused for one character."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else storable(value)


class Base(DeclarativeBase):
    """Constraint names are derived, so that a migration can name what it drops."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Words,
        int: BigInteger,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
        # Text, not a native enum: a new state is a migration of the table's rows, never of a type.
        StrEnum: Enum(StrEnum, native_enum=False, length=32, values_callable=_values),
        **dict.fromkeys(_IDS, Words),
    }


class Leased:
    """A row that one worker at a time reconciles. ``fence`` grows with each lease: a stale worker is recognised by its token.

    ``reconcile_at`` is the queue: the sweep nudges rows whose time has come. ``attempts`` counts leases since the last success, before the
    work, so that work which kills its worker is noticed and slowed down.
    """

    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_until: Mapped[datetime | None]
    reconcile_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True), index=True)
    attempts: Mapped[int] = mapped_column(Integer, default=0)


class Versioned:
    """A row that grows a version with each change of state."""

    version: Mapped[int] = mapped_column(BigInteger, default=0)


class Timed:
    """A row that remembers since when it has been in its state."""

    state_since: Mapped[datetime]
