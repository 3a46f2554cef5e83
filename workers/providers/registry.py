"""Which provider the settings ask for. The only module that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from workers.providers.base import Provider
from workers.providers.bootstrap import bundle_checksum
from workers.providers.ec2_options import Ec2Options
from workers.providers.ec2_user_data import UserData
from workers.providers.local import LocalProvider
from workers.providers.prices import ListPrices, Prices, TraceFile, WithList
from workers.providers.simulated_fleet import FleetProvider
from workers.providers.static import StaticProvider
from workers.providers.static_inventory import BadInventory, Inventory
from workers.providers.static_notes import Notes
from workers.providers.static_ssh import Line
from workers.settings import HEALTH, MEMORY_TIER, PREFIX, Settings, SettingsError


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


def _static(settings: Settings) -> Provider:
    if settings.static_inventory is None:
        message = f"{PREFIX}STATIC_INVENTORY is not set. EVERSTEP_PROVIDER=static needs the path of an inventory of hosts"
        raise SettingsError(message)
    try:
        inventory = Inventory(settings.static_inventory)
    except BadInventory as error:
        message = f"{PREFIX}STATIC_INVENTORY: {error}"
        raise SettingsError(message) from error
    notes = settings.home / "static"
    return StaticProvider(
        inventory=inventory,
        notes=Notes(notes),
        line=Line(notes / "known_hosts"),
        api_url=settings.api_url,
        object_store_url=settings.object_store_url,
        # What else is in our environment is this machine's, not theirs.
        environ={name: value for name, value in settings.environ.items() if name.startswith((HEALTH, MEMORY_TIER))},
    )


def _ec2(settings: Settings) -> Provider:
    from workers.providers import ec2, ec2_calls  # noqa: PLC0415  (boto3 is large, and of no use to the others)

    told = {name: value for name, value in settings.environ.items() if name.startswith(PREFIX)}  # and none of our own keys
    if settings.s3_endpoint_url:
        told["AWS_ENDPOINT_URL_S3"] = settings.s3_endpoint_url
    user_data = UserData(settings.api_url, settings.object_store_url, told)
    checksum = partial(bundle_checksum, settings.api_url)
    return ec2.Ec2Provider(ec2_calls.connect(settings.region), Ec2Options.read(settings), user_data, checksum)


def _ec2_prices(settings: Settings) -> Prices:
    from workers.providers import ec2_calls, ec2_prices  # noqa: PLC0415  (as above)

    return ec2_prices.Ec2Prices(ec2_calls.connect(settings.region), ListPrices.shipped())


_KNOWN: Mapping[str, Callable[[Settings], Provider]] = MappingProxyType(
    {"local": _local, "ec2": _ec2, "static": _static, "simulated": _simulated}
)


def provider(settings: Settings) -> Provider:
    """Raises SettingsError for a name that is none of ours, or for settings with which the provider cannot work."""
    make = _KNOWN.get(settings.provider)
    if make is None:
        message = f"EVERSTEP_PROVIDER is {settings.provider!r}; this control plane knows: {', '.join(_KNOWN)}"
        raise SettingsError(message)
    return make(settings)


_PRICES: Mapping[str, Callable[[Settings], Prices]] = MappingProxyType(
    {"simulated": lambda settings: FleetProvider(settings.home / "fleet"), "ec2": _ec2_prices}
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
