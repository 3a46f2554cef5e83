"""What the API process is told by its environment, read once."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Self

PREFIX = "EVERSTEP_"
_PLACE = re.compile(r"(s3://[a-z0-9][a-z0-9.-]*|file://(?=/[^/]))(/[A-Za-z0-9_=+@.-]+)*/?")
"""Of exports. A bucket may be allowed as a whole, the machine's root may not."""


class SettingsError(ValueError):
    """A variable is missing or cannot be read; the message names it and says what to do."""


@dataclass(frozen=True)
class Bootstrap:
    """Credentials which the installation was created with; stored at start-up so that the first call can be signed."""

    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Settings:
    """``master_key`` (32 bytes) seals secrets at rest and signs page tokens: losing it makes stored access keys unreadable.

    ``stack_began_at`` is when the stack around this process began, where it is known: a worker's older sign of life is another worker's.
    ``rate_limit`` is how many requests a second each key has, with bursts of twice as many; 0: no limit. ``trusted_proxies`` are the addresses
    whose ``X-Forwarded-For`` is believed. ``metrics_from`` are the networks that are told ``/metrics``. ``export_to`` are the places, as URLs,
    below which callers may have checkpoints exported, with this installation's rights. ``most_instances`` is how many instances all clusters together may have, ``most_instances_of_cluster`` each of them. ``lifecycle_…`` are what agents are told of lifecycle scripts: how often each is tried, the pause
    before the second try, and how long all of it may take; the limit stays below the hour that a node has for its checks.
    """

    database_url: str = field(repr=False)
    broker_url: str = field(repr=False)
    master_key: bytes = field(repr=False)
    region: str = "us-east-1"
    account_id: str = "123456789012"
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    stack_began_at: datetime | None = None
    rate_limit: float = 200.0
    lifecycle_tries: int = 3
    lifecycle_pause_s: float = 5.0
    lifecycle_limit_s: float = 3000.0
    trusted_proxies: frozenset[str] = frozenset()
    metrics_from: tuple[IPv4Network | IPv6Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    export_to: tuple[str, ...] = ()
    most_instances: int | None = None
    most_instances_of_cluster: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Reads ``EVERSTEP_*``.

        Raises:
            SettingsError: a required variable is missing or cannot be read, or the master key is not base64 of 32 bytes.
        """
        variables = os.environ if environment is None else environment
        return cls(
            database_url=_required(variables, "DATABASE_URL"),
            broker_url=_required(variables, "BROKER_URL"),
            master_key=_master_key(_required(variables, "MASTER_KEY")),
            region=variables.get(f"{PREFIX}REGION") or "us-east-1",
            account_id=variables.get(f"{PREFIX}ACCOUNT_ID") or "123456789012",
            bootstrap=Bootstrap(
                access_key_id=variables.get(f"{PREFIX}BOOTSTRAP_ACCESS_KEY_ID") or None,
                secret_access_key=variables.get(f"{PREFIX}BOOTSTRAP_SECRET_ACCESS_KEY") or None,
                token=variables.get(f"{PREFIX}BOOTSTRAP_TOKEN") or None,
            ),
            stack_began_at=_instant(variables, "STACK_BEGAN_AT"),
            rate_limit=_rate(variables, "RATE_LIMIT"),
            lifecycle_tries=max(1, int(_number(variables, "LIFECYCLE_TRIES", cls.lifecycle_tries))),
            lifecycle_pause_s=_number(variables, "LIFECYCLE_PAUSE_S", cls.lifecycle_pause_s),
            lifecycle_limit_s=_number(variables, "LIFECYCLE_LIMIT_S", cls.lifecycle_limit_s),
            trusted_proxies=frozenset((variables.get(f"{PREFIX}TRUSTED_PROXIES") or "").replace(",", " ").split()),
            metrics_from=_networks(variables, "METRICS_FROM", cls.metrics_from),
            export_to=_places(variables, "EXPORT_TO"),
            most_instances=_limit(variables, "MAX_INSTANCES"),
            most_instances_of_cluster=_limit(variables, "MAX_INSTANCES_PER_CLUSTER"),
        )


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(f"{PREFIX}{name}")
    if not value:
        message = f"{PREFIX}{name} is not set. `everstep up` sets it; a deployment of your own must."
        raise SettingsError(message)
    return value


def _instant(variables: Mapping[str, str], name: str) -> datetime | None:
    """Unix seconds, or nothing."""
    value = variables.get(f"{PREFIX}{name}")
    try:
        return datetime.fromtimestamp(float(value), UTC) if value else None
    except (ValueError, OverflowError) as error:
        message = f"{PREFIX}{name} is not a time in Unix seconds"
        raise SettingsError(message) from error


def _number(variables: Mapping[str, str], name: str, default: float) -> float:
    """Not negative."""
    try:
        number = float(variables.get(f"{PREFIX}{name}") or default)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        message = f"{PREFIX}{name} must be a number that is not negative"
        raise SettingsError(message)
    return number


def _rate(variables: Mapping[str, str], name: str) -> float:
    """Requests a second; 0 is no limit."""
    text = variables.get(f"{PREFIX}{name}") or ""
    try:
        rate = float(text or Settings.rate_limit)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        message = f"{PREFIX}{name} is {text!r}; it must be a number of requests a second, or 0 for no limit"
        raise SettingsError(message)
    return rate


def _networks(
    variables: Mapping[str, str], name: str, default: tuple[IPv4Network | IPv6Network, ...]
) -> tuple[IPv4Network | IPv6Network, ...]:
    text = variables.get(f"{PREFIX}{name}")
    try:
        return tuple(ip_network(part) for part in text.replace(",", " ").split()) if text else default
    except ValueError as error:
        message = f"{PREFIX}{name} is {text!r}; it must be networks such as 10.0.0.0/8, with commas in between"
        raise SettingsError(message) from error


def _places(variables: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = variables.get(f"{PREFIX}{name}") or ""
    places = tuple(text.replace(",", " ").split())
    if not all(_PLACE.fullmatch(place) and not {".", ".."} & set(place.split("/")) for place in places):
        message = f"{PREFIX}{name} is {text!r}; it must be places such as s3://bucket/exports or file:///srv/exports, with commas in between"
        raise SettingsError(message)
    return places


def _limit(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(f"{PREFIX}{name}")
    if not text:
        return None
    if not text.isdecimal():
        message = f"{PREFIX}{name} is {text!r}; it must be a number of instances"
        raise SettingsError(message)
    return int(text)


def _master_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        message = f"{PREFIX}MASTER_KEY is not base64"
        raise SettingsError(message) from error
    if len(key) != MASTER_KEY_BYTES:
        message = f"{PREFIX}MASTER_KEY holds {len(key)} bytes; it must hold {MASTER_KEY_BYTES}"
        raise SettingsError(message)
    return key


MASTER_KEY_BYTES = 32
