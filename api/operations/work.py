"""What every use-case is given: its transaction, the time, who calls, and where this control plane stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from api.auth import Caller


@dataclass(frozen=True)
class Work:
    """One use-case is one transaction: whoever opened ``session`` commits it when the function has returned."""

    session: Session
    now: datetime
    region: str
    caller: Caller

    @property
    def account_id(self) -> str:
        return self.caller.account_id
