"""The port to whoever knows what hosts cost, and the files that know it where no provider does.

A file of spot prices is CSV with the header ``at,instance_type,zone,per_hour``, or has a JSON object with these members on each line. ``at`` is ISO 8601 or
Unix seconds; an empty zone stands for all. A file of list prices is CSV with the header ``instance_type,per_hour``, or TOML as the one that ships.
Types may be written with or without ``ml.``.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from workers.providers.base import ProviderError

_PREFIX = "ml."


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


class BadPrices(ProviderError):
    """A file of prices cannot be read; the message names the line and what is wrong."""


@dataclass(frozen=True)
class ListPrices:
    """List prices of an hour, by type. Alone it knows of no spot price."""

    per_hour: Mapping[str, Decimal] = field(default_factory=dict)

    @classmethod
    def shipped(cls) -> ListPrices:
        """Those that come with this control plane; ``list_prices.toml`` says of when they are."""
        return _shipped()

    @classmethod
    def of_file(cls, path: Path) -> ListPrices:
        """Raises BadPrices."""
        text = _read(path)
        if path.suffix == ".toml":
            return cls(_of_toml(text, path))
        rows = _csv(text, path, ("instance_type", "per_hour"))
        return cls({_type(row, where): _dollars(row, where) for where, row in rows})

    def spot(self, instance_types: Sequence[str], *, since: datetime) -> Sequence[SpotPrice]:  # noqa: ARG002  (a port)
        return ()

    def on_demand(self, instance_type: str) -> Decimal | None:
        return self.per_hour.get(instance_type)


@dataclass(frozen=True)
class TraceFile:
    """Spot prices from a file, which may grow: it is read anew each time. ``listed`` knows the list prices."""

    path: Path
    listed: ListPrices

    def spot(self, instance_types: Sequence[str], *, since: datetime) -> Sequence[SpotPrice]:
        """Raises BadPrices."""
        return _since(_trace(self.path), frozenset(instance_types), since)

    def on_demand(self, instance_type: str) -> Decimal | None:
        return self.listed.on_demand(instance_type)


@dataclass(frozen=True)
class WithList:
    """Spot prices from one source, list prices from a file before that source's own."""

    source: Prices
    listed: ListPrices

    def spot(self, instance_types: Sequence[str], *, since: datetime) -> Sequence[SpotPrice]:
        return self.source.spot(instance_types, since=since)

    def on_demand(self, instance_type: str) -> Decimal | None:
        known = self.listed.on_demand(instance_type)
        return self.source.on_demand(instance_type) if known is None else known


@cache
def _shipped() -> ListPrices:
    found = resources.files("workers.providers").joinpath("list_prices.toml")
    return ListPrices(_of_toml(found.read_text(encoding="utf-8"), Path("list_prices.toml")))


def _since(prices: Iterable[SpotPrice], types: frozenset[str], since: datetime) -> list[SpotPrice]:
    """Of each type and zone, the last price at or before ``since`` and all after it."""
    kept: dict[tuple[str, str], list[SpotPrice]] = {}
    for price in sorted(prices, key=lambda price: price.at):
        if price.instance_type in types:
            series = kept.setdefault((price.instance_type, price.zone), [])
            if price.at <= since:
                series.clear()
            series.append(price)
    return [price for series in kept.values() for price in series]


def _trace(path: Path) -> Iterator[SpotPrice]:
    text = _read(path)
    is_json = text.lstrip().startswith("{")
    rows = _json_lines(text, path) if is_json else _csv(text, path, ("at", "instance_type", "zone", "per_hour"))
    for where, row in rows:
        yield SpotPrice(_type(row, where), str(row.get("zone") or ""), _moment(row, where), _dollars(row, where))


def _csv(text: str, path: Path, header: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in header if name not in (reader.fieldnames or ())]
    if missing:
        message = f"{path}: the first line must be {','.join(header)}; it lacks {', '.join(missing)}"
        raise BadPrices(message)
    for row in reader:
        yield f"{path}, line {reader.line_num}", row


def _json_lines(text: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line, parse_float=Decimal)
        except ValueError as error:
            message = f"{where}: no JSON object"
            raise BadPrices(message) from error
        if not isinstance(row, dict):
            message = f"{where}: no JSON object"
            raise BadPrices(message)
        yield where, row


def _of_toml(text: str, path: Path) -> dict[str, Decimal]:
    try:
        prices = tomllib.loads(text, parse_float=Decimal).get("per_hour", {})
    except tomllib.TOMLDecodeError as error:
        message = f"{path}: {error}"
        raise BadPrices(message) from error
    return {_named(name): _dollars({"per_hour": price}, f"{path}, {name}") for name, price in prices.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: prices cannot be read: {error}"
        raise BadPrices(message) from error


def _type(row: Mapping[str, Any], where: str) -> str:
    name = row.get("instance_type")
    if not isinstance(name, str) or not name:
        message = f"{where}: instance_type is missing"
        raise BadPrices(message)
    return _named(name)


def _named(name: str) -> str:
    return name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"


def _dollars(row: Mapping[str, Any], where: str) -> Decimal:
    try:
        price = Decimal(str(row.get("per_hour")))
    except InvalidOperation as error:
        message = f"{where}: per_hour is {row.get('per_hour')!r}; it must be a number of dollars"
        raise BadPrices(message) from error
    if not price.is_finite() or price < 0:
        message = f"{where}: per_hour is {price}; it must not be less than nothing"
        raise BadPrices(message)
    return price


def _moment(row: Mapping[str, Any], where: str) -> datetime:
    told = row.get("at")
    try:
        return _parsed(str(told))
    except (ValueError, OverflowError, OSError) as error:
        message = f"{where}: at is {told!r}; it must be a time in ISO 8601 or Unix seconds"
        raise BadPrices(message) from error


def _parsed(text: str) -> datetime:
    if text.replace(".", "", 1).isdigit():
        return datetime.fromtimestamp(float(text), UTC)
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
