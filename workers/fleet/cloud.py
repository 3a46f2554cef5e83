"""The provider's side of a simulated fleet: quotas, boots, late lists, prices, and what becomes of hosts, all drawn from the scenario's seed.

The n-th host that is launched meets the same fate in every run: its draws come from the seed and its number, not from its claim.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from workers.fleet.scenario import Blow, Scenario, Strike
from workers.fleet.timeline import Timeline
from workers.providers.base import HostNotFound, HostRef, HostSeen, HostSpec, Market, NoCapacity
from workers.providers.prices import SpotPrice
from workers.providers.simulated import SimulatedProvider

log = logging.getLogger(__name__)
_HOUR = 3_600.0


@dataclass(eq=False)
class Machine:
    """A host that the cloud has launched. ``number`` counts launches; ``power`` changes with every start and end of what runs on it."""

    number: int
    spec: HostSpec
    host: HostSeen
    dice: random.Random
    launched_at: float
    power: int = 0
    is_on: bool = False
    is_cut: bool = False
    ends_at: float | None = None


@dataclass(frozen=True)
class Hooks:
    """Who is told of hosts: when one comes up, goes down, is struck by a hardware fault, is to be taken, or loses its network."""

    started: Callable[[Machine], None] = lambda _: None
    stopped: Callable[[Machine], None] = lambda _: None
    faulty: Callable[[Machine, int], None] = lambda _, __: None
    noticed: Callable[[Machine, float], None] = lambda _, __: None
    healed: Callable[[Machine], None] = lambda _: None


@dataclass
class Cloud(SimulatedProvider):
    """Not for several threads: all calls come from the fleet's loop, or from a test's."""

    scenario: Scenario = field(default_factory=Scenario)
    timeline: Timeline = field(default_factory=lambda: Timeline(lambda: 0.0, began_at=0.0))
    hooks: Hooks = field(default_factory=Hooks)
    machines: dict[str, Machine] = field(default_factory=dict)
    launches: list[float] = field(default_factory=list)
    """When hosts were launched, by the scenario's time."""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.capacity = self.scenario.capacity
        self.refused = self.scenario.refused
        self.late = timedelta(seconds=self.timeline.real(self.scenario.boot.listed_after))
        self.now = lambda: datetime.fromtimestamp(self.timeline.unix(), UTC)
        self._fate = random.Random(f"{self.scenario.seed}/fleet")  # noqa: S311  (a simulation's dice, repeatable by seed)
        for strike in self.scenario.strikes:
            self.timeline.at(strike.at, lambda strike=strike: self._strike(strike))  # type: ignore[misc]
        for moment in self.scenario.spot.at:
            self.timeline.at(moment, self._reclaim_one)
        if self.scenario.spot.per_hour:
            self._reclaim_again()

    # ------------------------------------------------------------ the provider's verbs

    def launch(self, spec: HostSpec) -> HostSeen:
        known = self.machines.get(spec.claim)
        if known is not None and known.ends_at is None:
            return known.host
        try:
            host = super().launch(spec)
        except NoCapacity:
            self.counts["launches refused"] += 1
            raise
        number = len(self.launches)
        dice = random.Random(f"{self.scenario.seed}/host/{number}")  # noqa: S311  (as above)
        machine = self.machines[spec.claim] = Machine(number, spec, host, dice, self.timeline.now)
        self.launches.append(machine.launched_at)
        self._boot(machine)
        return host

    def release(self, ref: HostRef) -> None:
        """The host ends at once, and is known for a while longer."""
        self._host(ref)
        machine = self.machines[ref.claim]
        if machine.ends_at is None and ref.claim not in self.stuck:
            self._down(machine)
            machine.ends_at = self.timeline.now + self.scenario.boot.release
            self._hosts[ref.claim] = machine.host = replace(machine.host, is_alive=False)
        if machine.ends_at is None or machine.ends_at <= self.timeline.now:
            super().release(ref)
            self.machines.pop(ref.claim, None)

    def kill(self, claim: str) -> None:
        super().kill(claim)
        self.machines[claim].host = self._hosts[claim]
        self._down(self.machines[claim])

    def _restart(self, ref: HostRef, spec: HostSpec, image: str | None) -> HostSeen:
        is_new = self._host(ref).start < spec.start
        host = super()._restart(ref, spec, image)
        machine = self.machines[ref.claim]
        machine.host = host
        if is_new:
            self._down(machine)
            machine.spec = spec
            self._boot(machine)
        return host

    def _zone_for(self, spec: HostSpec) -> str | None:
        """The first zone that has room, of those wished for, or of all. Raises NoCapacity."""
        wished = [site.zone for site in spec.sites if site.zone is not None] or list(self.scenario.zones)
        quota = self.scenario.quotas.get(spec.instance_type)
        if quota is None:
            return wished[0]
        used = Counter(host.zone for host in self._hosts.values() if host.instance_type == spec.instance_type)
        for zone in wished:
            if used[zone] < quota.get(zone, 0):
                return zone
        message = f"there is no {spec.instance_type} to be had in {', '.join(wished)}"
        raise NoCapacity(message)

    # ------------------------------------------------------------ prices

    def spot(self, instance_types: Sequence[str], *, since: datetime) -> Sequence[SpotPrice]:
        """Of the scenario's trace, as far as its time has come."""
        told: dict[tuple[str, str], list[SpotPrice]] = {}
        for price in self.scenario.prices:
            if price.instance_type in instance_types and price.at <= self.timeline.now:
                at = datetime.fromtimestamp(self.timeline.unix(price.at), UTC)
                series = told.setdefault((price.instance_type, price.zone), [])
                if at <= since:
                    series.clear()
                series.append(SpotPrice(price.instance_type, price.zone, at, price.per_hour))
        return tuple(price for series in told.values() for price in series)

    def on_demand(self, instance_type: str) -> Decimal | None:
        return self.scenario.on_demand.get(instance_type)

    # ------------------------------------------------------------ what becomes of hosts

    def _boot(self, machine: Machine) -> None:
        power = machine.power
        fails = machine.dice.random() < self.scenario.boot.failures
        self.timeline.after(self.scenario.boot.seconds.draw(machine.dice), lambda: self._booted(machine, power, fails=fails))

    def _booted(self, machine: Machine, power: int, *, fails: bool) -> None:
        if machine.power != power:
            return
        if fails:
            self.counts["boots failed"] += 1
            self.kill(machine.spec.claim)
            return
        machine.is_on, machine.is_cut = True, False
        self.hooks.started(machine)
        self._await_fault(machine)
        if machine.spec.market is Market.SPOT and self.scenario.spot.per_host_hour:
            self._after_draw(machine, self.scenario.spot.per_host_hour, lambda: self.reclaim(machine))

    def _await_fault(self, machine: Machine) -> None:
        for number, risk in enumerate(self.scenario.hardware):
            if risk.per_host_hour:
                self._after_draw(machine, risk.per_host_hour, lambda number=number: self._fault(machine, number))  # type: ignore[misc]

    def _fault(self, machine: Machine, number: int) -> None:
        self.counts["hardware faults"] += 1
        self.hooks.faulty(machine, number)

    def _after_draw(self, machine: Machine, per_hour: float, happening: Callable[[], None]) -> None:
        power = machine.power
        self.timeline.after(
            machine.dice.expovariate(per_hour / _HOUR), lambda: happening() if machine.power == power and machine.is_on else None
        )

    def _down(self, machine: Machine) -> None:
        machine.power += 1
        if machine.is_on:
            machine.is_on = False
            self.hooks.stopped(machine)

    # ------------------------------------------------------------ spot

    def reclaim(self, machine: Machine) -> None:
        """Takes a host back: after a notice, or without a word."""
        if not machine.is_on:
            return
        is_noticed = machine.dice.random() < self.scenario.spot.noticed
        self.counts["reclaims"] += 1
        if not is_noticed or not self.scenario.spot.notice:
            self._take(machine, machine.power)
            return
        power = machine.power
        self.hooks.noticed(machine, self.timeline.now + self.scenario.spot.notice)
        self.timeline.after(self.scenario.spot.notice, lambda: self._take(machine, power))

    def _take(self, machine: Machine, power: int) -> None:
        if machine.power == power:
            self.kill(machine.spec.claim)

    def _reclaim_again(self) -> None:
        wait = self._fate.expovariate(self.scenario.spot.per_hour / _HOUR)
        self.timeline.after(wait, self._reclaim_and_wait)

    def _reclaim_and_wait(self) -> None:
        self._reclaim_one()
        self._reclaim_again()

    def _reclaim_one(self) -> None:
        spots = [machine for machine in self.live() if machine.spec.market is Market.SPOT]
        if spots:
            self.reclaim(self._fate.choice(spots))

    # ------------------------------------------------------------ strikes

    def live(self) -> list[Machine]:
        return sorted((machine for machine in self.machines.values() if machine.is_on), key=lambda machine: machine.number)

    def strike(self, strike: Strike) -> int:
        """Strikes now, whatever its moment; returns how many hosts were struck."""
        live = self.live()
        count = min(len(live), strike.hosts or round(strike.share * len(live)))
        struck = self._fate.sample(live, count)
        for machine in struck:
            if strike.blow is Blow.DEATH:
                self.kill(machine.spec.claim)
            else:
                self.cut(machine, strike.seconds)
        self.counts[f"{strike.blow}s"] += count
        return count

    def _strike(self, strike: Strike) -> None:
        log.warning("%s: %d hosts are struck", strike.blow, self.strike(strike))

    def cut(self, machine: Machine, seconds: float) -> None:
        """The host reaches nobody for so long, nor is it reached; what runs on it goes on."""
        machine.is_cut = True
        power = machine.power
        self.timeline.after(seconds, lambda: self._heal(machine) if machine.power == power else None)

    def _heal(self, machine: Machine) -> None:
        machine.is_cut = False
        self.hooks.healed(machine)

    def find(self, claim: str) -> Machine:
        """Raises HostNotFound."""
        if claim not in self.machines:
            message = f"no host for claim {claim}"
            raise HostNotFound(message)
        return self.machines[claim]
