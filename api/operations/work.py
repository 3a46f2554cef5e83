"""What every use-case is given: its transaction, the time, and where this control plane stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session


@dataclass(frozen=True)
class Work:
    """One use-case is one transaction: whoever opened ``session`` commits it when the function has returned."""

    session: Session
    now: datetime
    region: str
    account_id: str
