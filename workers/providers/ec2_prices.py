"""What EC2's spot instances cost, by EC2's own history. List prices are another service's: they come from a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from workers.providers.ec2_calls import Calls
from workers.providers.ec2_requests import ec2_type
from workers.providers.prices import ListPrices, SpotPrice

_PAGE = 1000
_PRODUCT = "Linux/UNIX"


@dataclass(frozen=True)
class Ec2Prices:
    calls: Calls
    listed: ListPrices
    page_size: int = _PAGE

    def spot(self, instance_types: Sequence[str], *, since: datetime) -> Sequence[SpotPrice]:
        """EC2 adds the prices that were in force at ``since`` by itself. Raises ProviderError."""
        if not instance_types:
            return ()
        named = {ec2_type(name): name for name in instance_types}
        wish = {"InstanceTypes": sorted(named), "ProductDescriptions": [_PRODUCT], "StartTime": since}
        found = {
            SpotPrice(named[told["InstanceType"]], told["AvailabilityZone"], told["Timestamp"], Decimal(told["SpotPrice"]))
            for page in self.calls.pages("describe_spot_price_history", page_size=self.page_size, **wish)
            for told in page["SpotPriceHistory"]
            if told["InstanceType"] in named
        }
        return sorted(found, key=lambda price: (price.instance_type, price.zone, price.at))

    def on_demand(self, instance_type: str) -> Decimal | None:
        return self.listed.on_demand(instance_type)
