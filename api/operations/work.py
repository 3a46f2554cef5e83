"""What every use-case is given: its transaction, the time, who calls, and where this control plane stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from api.auth import Caller
from models.access import scope


@dataclass(frozen=True)
class Limits:
    """How many instances may be asked for, of all clusters together and of one; None: as many as one likes.

    ``export_to`` are the places below which callers may have checkpoints exported, besides this installation's own.
    """

    instances: int | None = None
    instances_of_cluster: int | None = None
    export_to: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """One use-case is one transaction: whoever opened ``session`` commits it when the function has returned.

    From here on the session sees what the caller's team may see, and nothing else. ``master_key`` seals what a use-case has to keep secret.
    """

    session: Session
    now: datetime
    region: str
    caller: Caller
    master_key: bytes = field(default=b"", repr=False)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        scope.bind(self.session, self.caller.team)

    @property
    def account_id(self) -> str:
        return self.caller.account_id
