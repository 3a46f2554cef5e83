"""What happens in a simulated fleet: read from a file, checked member by member, and the same again for the same seed.

Every duration and every rate is in the scenario's own time, of which ``speed`` seconds pass in a real one. A key that is not known is refused.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import yaml

from everstep.hardware import FaultClass
from workers.fleet.members import Members, ScenarioError

__all__ = ["Scenario", "ScenarioError"]


@dataclass(frozen=True)
class Spread:
    """Seconds, drawn evenly between two bounds."""

    low: float = 0.0
    high: float = 0.0

    @classmethod
    def read(cls, members: Members, name: str, default: Self) -> Self:
        """A number, or a pair of them."""
        bounds = members.numbers(name)
        if not bounds:
            return default
        if len(bounds) > 2 or bounds[0] > bounds[-1]:  # noqa: PLR2004  (a pair)
            raise members.wrong(name, "must be seconds, or [least, most]")
        return cls(bounds[0], bounds[-1])

    def draw(self, dice: random.Random) -> float:
        return dice.uniform(self.low, self.high)


@dataclass(frozen=True)
class Boot:
    """``failures`` is the share of hosts that die before their agent is up; a host is not listed before ``listed_after`` seconds."""

    seconds: Spread = field(default_factory=Spread)
    failures: float = 0.0
    listed_after: float = 0.0
    release: float = 0.0
    """How long a released host is still known."""
    lifecycle: Spread = field(default_factory=Spread)
    lifecycle_failures: float = 0.0

    @classmethod
    def read(cls, members: Members) -> Self:
        return cls(
            Spread.read(members, "seconds", Spread()),
            members.share("failures"),
            members.number("listed_after"),
            members.number("release_seconds"),
            Spread.read(members, "lifecycle_seconds", Spread()),
            members.share("lifecycle_failures"),
        )


@dataclass(frozen=True)
class HardwareRisk:
    """A fault that any device-bearing host may have, ``per_host_hour`` on average. The words are those of ``HardwareFault``."""

    code: str
    fault_class: FaultClass
    per_host_hour: float
    type: str
    reason: str

    @classmethod
    def read(cls, members: Members) -> Self:
        code = members.text("code")
        return cls(
            code,
            members.word("class", FaultClass),
            members.number("per_host_hour"),
            members.text("type", "SimulatedError"),
            members.text("reason", f"Simulated:{code}"),
        )


@dataclass(frozen=True)
class SpotRisk:
    """``per_hour`` reclaims in the whole fleet, ``per_host_hour`` of each spot host; ``noticed`` is the share that is announced ``notice`` seconds before.

    ``at`` are moments at which one spot host is reclaimed for certain.
    """

    per_hour: float = 0.0
    per_host_hour: float = 0.0
    notice: float = 120.0
    noticed: float = 1.0
    at: tuple[float, ...] = ()

    @classmethod
    def read(cls, members: Members) -> Self:
        return cls(
            members.number("per_hour"),
            members.number("per_host_hour"),
            members.number("notice", cls.notice),
            members.share("noticed", cls.noticed),
            tuple(members.numbers("at")),
        )


class Blow(StrEnum):
    OUTAGE = "outage"
    """The hosts live and train on, and reach the control plane no more for a while: what they send is lost without a word."""
    DEATH = "death"
    """The hosts lose their power; the provider knows it."""


@dataclass(frozen=True)
class Strike:
    """At a moment, ``share`` of the live hosts, or exactly ``hosts`` of them, are struck."""

    blow: Blow
    at: float
    share: float = 0.0
    hosts: int = 0
    seconds: float = 0.0

    @classmethod
    def read(cls, blow: Blow, members: Members) -> Self:
        strike = cls(blow, members.number("at"), members.share("share"), int(members.number("hosts")), members.number("seconds"))
        if not strike.share and not strike.hosts:
            unsaid = members.wrong("hosts", "says how many are struck, or `share` does; both are missing")
            raise unsaid
        return strike


@dataclass(frozen=True)
class Price:
    """From ``at`` on. ``market``'s list prices are ``on_demand`` in the file."""

    instance_type: str
    zone: str
    at: float
    per_hour: Decimal

    @classmethod
    def read(cls, members: Members) -> Self:
        return cls(members.text("type"), members.text("zone"), members.number("at"), members.decimal("per_hour"))


@dataclass(frozen=True)
class Training:
    """How a simulated job runs, unless its environment says otherwise (``SIM_STEPS``, ``SIM_STEP_SECONDS``, ``SIM_CHECKPOINT_EVERY``).

    With ``is_sharded`` a lost member takes a part of the state along that nobody else has, and everybody goes on from the newest checkpoint.
    """

    steps: int = 1_000
    step_seconds: float = 1.0
    warm_up: Spread = field(default_factory=Spread)
    reform: Spread = field(default_factory=Spread)
    checkpoint_every: int = 0
    is_sharded: bool = False

    @classmethod
    def read(cls, members: Members) -> Self:
        training = cls(
            int(members.number("steps", cls.steps)),
            members.number("step_seconds", cls.step_seconds),
            Spread.read(members, "warm_up_seconds", Spread()),
            Spread.read(members, "reform_seconds", Spread()),
            int(members.number("checkpoint_every")),
            members.flag("sharded"),
        )
        if training.steps < 1 or training.step_seconds <= 0:
            nothing = members.wrong("steps", "and `step_seconds` must be more than nothing")
            raise nothing
        return training


@dataclass(frozen=True)
class Scenario:
    """A fleet and its fate. ``quotas`` maps an instance type to the hosts of it in each zone; a type that is not listed has room everywhere."""

    seed: int = 0
    speed: float = 1.0
    capacity: int = 10_000
    zones: tuple[str, ...] = ("sim-1a",)
    quotas: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    boot: Boot = field(default_factory=Boot)
    hardware: tuple[HardwareRisk, ...] = ()
    spot: SpotRisk = field(default_factory=SpotRisk)
    strikes: tuple[Strike, ...] = ()
    on_demand: Mapping[str, Decimal] = field(default_factory=dict)
    prices: tuple[Price, ...] = ()
    training: Training = field(default_factory=Training)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises ScenarioError; the message names the file, and the member that is wrong."""
        try:
            return cls.read(yaml.safe_load(path.read_text()) or {})
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}"
            raise ScenarioError(message) from error
        except yaml.YAMLError as error:
            message = f"{path} is neither YAML nor JSON: {error}"
            raise ScenarioError(message) from error
        except ScenarioError as error:
            message = f"{path}: {error}"
            raise ScenarioError(message) from error

    @classmethod
    def read(cls, wire: Any) -> Self:
        """Raises ScenarioError, which names the member."""
        members = Members(wire)
        zones = tuple(members.texts("zones")) or cls.zones
        prices = members.below("prices")
        scenario = cls(
            seed=int(members.number("seed")),
            speed=members.number("speed", cls.speed),
            capacity=int(members.number("capacity", cls.capacity)),
            zones=zones,
            quotas=_quotas(members.below("quotas"), zones),
            refused=frozenset(members.texts("refused")),
            boot=members.part("boot", Boot.read),
            hardware=tuple(HardwareRisk.read(one) for one in members.each("hardware")),
            spot=members.part("spot", SpotRisk.read),
            strikes=_strikes(members),
            on_demand=_on_demand(prices.below("on_demand")),
            prices=tuple(sorted((Price.read(one) for one in prices.each("spot")), key=lambda price: price.at)),
            training=members.part("training", Training.read),
        )
        prices.check_all_read()
        members.check_all_read()
        if scenario.speed <= 0:
            still = members.wrong("speed", "must be more than nothing")
            raise still
        return scenario


def _strikes(members: Members) -> tuple[Strike, ...]:
    struck = [Strike.read(Blow.OUTAGE, one) for one in members.each("outages")]
    struck += [Strike.read(Blow.DEATH, one) for one in members.each("deaths")]
    return tuple(sorted(struck, key=lambda strike: strike.at))


def _quotas(members: Members, zones: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """A number stands for the first zone alone."""
    found: dict[str, dict[str, int]] = {}
    for name in members.names():
        if members.is_object(name):
            inside = members.below(name)
            found[name] = {zone: int(inside.number(zone)) for zone in inside.names()}
            if unknown := set(found[name]) - set(zones):
                raise members.wrong(name, f"names zones that `zones` does not: {', '.join(sorted(unknown))}")
        else:
            found[name] = {zones[0]: int(members.number(name))}
    return found


def _on_demand(members: Members) -> dict[str, Decimal]:
    return {name: members.decimal(name) for name in members.names()}
