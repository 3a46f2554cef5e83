"""The port to whoever knows what hosts cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol


@dataclass(frozen=True)
class SpotPrice:
    """What an hour of a spot host of the type costs in the zone from ``at`` on, in dollars, until the next price of the same type and zone."""

    instance_type: str
    zone: str
    at: datetime
    per_hour: Decimal


class Prices(Protocol):
    def spot(self, instance_types: Sequence[str], *, since: datetime) -> Sequence[SpotPrice]:
        """Every price that has been in force since then, the ones in force at that moment included. Raises ProviderError."""
        ...

    def on_demand(self, instance_type: str) -> Decimal | None:
        """The list price of an hour in dollars; None if it is not known."""
        ...
