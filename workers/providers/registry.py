"""Which provider the settings ask for. The only module that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from workers.providers.base import Provider
from workers.providers.local import LocalProvider
from workers.providers.prices import ListPrices, Prices, TraceFile, WithList
from workers.providers.simulated_fleet import FleetProvider
from workers.settings import Settings, SettingsError


def _local(settings: Settings) -> Provider:
    return LocalProvider(
        directory=settings.home / "hosts",
        api_url=settings.api_url,
        object_store_url=settings.object_store_url,
        capacity=settings.local_capacity,
        environ=settings.environ,
    )


def _simulated(settings: Settings) -> Provider:
    return FleetProvider(settings.home / "fleet")


_KNOWN: Mapping[str, Callable[[Settings], Provider]] = MappingProxyType({"local": _local, "simulated": _simulated})


def provider(settings: Settings) -> Provider:
    """Raises SettingsError for a name that is none of ours, or for settings with which the provider cannot work."""
    make = _KNOWN.get(settings.provider)
    if make is None:
        message = f"EVERSTEP_PROVIDER is {settings.provider!r}; this control plane knows: {', '.join(_KNOWN)}"
        raise SettingsError(message)
    return make(settings)


_PRICES: Mapping[str, Callable[[Settings], Prices]] = MappingProxyType(
    {"simulated": lambda settings: FleetProvider(settings.home / "fleet")}
)
"""Providers that know what their hosts cost."""


def prices(settings: Settings) -> Prices:
    """Who knows what hosts cost: files that the settings name, before the provider's own word, before the list that is shipped.

    Raises:
        BadPrices: a file of list prices that cannot be read.
    """
    listed = ListPrices.of_file(settings.on_demand_prices) if settings.on_demand_prices else None
    if settings.spot_prices is not None:
        return TraceFile(settings.spot_prices, listed or ListPrices.shipped())
    if settings.provider not in _PRICES:
        return listed or ListPrices.shipped()
    source = _PRICES[settings.provider](settings)
    return source if listed is None else WithList(source, listed)
