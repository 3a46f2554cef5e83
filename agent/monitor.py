"""Watches the node's accelerators and tells the control plane of what has changed, and of each fault as it is seen."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from agent.accelerators.base import Accelerators, Sample, Seen
from agent.accelerators.choice import INSTANCE_TYPE, Clocks, Wanted, choose
from agent.hand import Hand
from agent.metrics import Door, Gauge
from agent.settings import SettingsError
from everstep.hardware import HardwareReport, HardwareState
from everstep.protocol import ProcessReport, ProcessStatus, Report

log = logging.getLogger(__name__)

PORT = "EVERSTEP_METRICS_PORT"
STATE_S = "EVERSTEP_HARDWARE_POLL_S"
_ADDRESS = "EVERSTEP_NODE_ADDRESS"
EVENTS_S = 0.25
"""How often faults are listened for."""
_STATE_S = 10.0
_SIMULATED_STATE_S = 1.0
_MOST_STATE_S = 30.0
"""A device that has vanished must be found within a minute, and takes two looks."""
_HANGS_AFTER_S = 30.0
_LETTING_GO_S = 3.0
_MOST_PORT = 65_535
_Returned = TypeVar("_Returned")


@dataclass(frozen=True)
class Pace:
    """``events_s`` and ``state_s``: how often is listened, and looked. ``hangs_after_s``: when a driver that does not answer counts as silent."""

    events_s: float
    state_s: float
    hangs_after_s: float = _HANGS_AFTER_S
    port: int = 0

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Pace:
        """Raises SettingsError."""
        is_simulated = Wanted.read(environment).kind.startswith("simulated")
        return cls(
            EVENTS_S,
            _number(environment, STATE_S, _SIMULATED_STATE_S if is_simulated else _STATE_S, _MOST_STATE_S),
            port=int(_number(environment, PORT, 0, _MOST_PORT)),
        )


class Monitor:
    """``report`` must not block. ``environment`` chooses the adapters (``EVERSTEP_ACCELERATORS``) and their sources.

    ``told`` returns when all reports so far have arrived; ``inventory`` gives what runs on the node, for the metrics' labels.

    Raises:
        SettingsError: the environment asks for what cannot be.
    """

    def __init__(
        self,
        *,
        node_id: str,
        state_dir: Path,
        environment: Mapping[str, str],
        report: Callable[[Report], None],
        told: Callable[[], Awaitable[None]] | None = None,
        inventory: Callable[[], Sequence[ProcessReport]] = tuple,
        adapter: Callable[[], Accelerators] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._environment = environment
        self._report = report
        self._told = told
        self._inventory = inventory
        self._pace = pace or Pace.read(environment)
        self._choose = adapter or (
            lambda: choose(environment, state_dir=state_dir, node=node_id, clocks=Clocks(time.time, time.monotonic))
        )
        self._hand = Hand("accelerators")
        self._gauge = Gauge(node_id)
        self._door = Door(self._gauge)
        self._last: HardwareReport | None = None
        self._adapter: Accelerators | None = None
        self._work: asyncio.Task[None] | None = None
        self._confirming: asyncio.Future[None] | None = None
        self._next_state = 0.0
        self._has_lost = False
        self.port = 0
        """Where the metrics are; 0 while they are nowhere."""

    async def start(self) -> None:
        """Begins to watch. Returns at once."""
        await self._open_door()
        self._work = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Ends what was started to watch."""
        for task in (self._work, self._confirming):
            if task is not None:
                task.cancel()
        with suppress(asyncio.CancelledError):
            if self._work is not None:
                await self._work
        adapter = self._adapter
        if adapter is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hand.do(adapter.close), _LETTING_GO_S)
        self._hand.let_go()
        await self._door.close()

    async def _open_door(self) -> None:
        """The port is in ``<state_dir>/metrics.port``. Without a door the watch goes on."""
        address = self._environment.get(_ADDRESS) or "127.0.0.1"
        try:
            self.port = await self._door.open(address, self._pace.port)
            self._state_dir.mkdir(parents=True, exist_ok=True)
            (self._state_dir / "metrics.port").write_text(str(self.port))
        except OSError as error:
            log.error("metrics cannot be served at %s, port %d: %s", address, self._pace.port, error)  # noqa: TRY400  (no fault of ours)

    # ------------------------------------------------------------ watching

    async def _watch(self) -> None:
        """For ever. Whatever goes wrong leaves the state unknown, and is tried again."""
        while True:
            try:
                await self._turn()
            except Exception as error:
                log.exception("the accelerators could not be looked at")
                self._say_unknown(f"the accelerators could not be looked at: {error}")
                self._next_state = 0.0
                await asyncio.sleep(self._pace.state_s)
            await asyncio.sleep(self._pace.events_s)

    async def _turn(self) -> None:
        if self._adapter is None:
            self._adapter = await self._waited(self._choose)
        adapter = self._adapter
        self._door.jobs = {process.job for process in self._inventory() if process.status is not ProcessStatus.EXITED}
        now = asyncio.get_running_loop().time()
        is_due = now >= self._next_state
        if is_due:
            self._next_state = now + self._pace.state_s
        if await self._listen(adapter) or is_due:
            await self._look(adapter)
        if is_due or self._confirming is not None:
            await self._confirm(adapter)

    async def _listen(self, adapter: Accelerators) -> bool:
        """Tells the faults that were heard, at once: a look at the devices may fail, or hang, just because of them. Whether there were any."""
        try:
            faults = await self._waited(adapter.events)
        except Exception:
            self._has_lost = True
            raise
        for fault in faults:
            log.warning("accelerator fault %s (%s): %s", fault.code, fault.fault_class.value, fault.evidence)
            self._gauge.count(fault)
            self._report(fault)
        if faults:
            self._owe()
        return bool(faults)

    async def _look(self, adapter: Accelerators) -> None:
        seen = await self._waited(adapter.detect)
        if await self._listen(adapter):
            seen = await self._waited(adapter.detect)  # with what they have left of the devices
            await self._listen(adapter)
        self._tell(adapter, seen, await self._waited(adapter.poll))

    async def _waited(self, call: Callable[[], _Returned]) -> _Returned:
        """What the call returns, however long it takes; after a while without an answer nothing is known any more."""
        future = self._hand.do(call)
        done, _ = await asyncio.wait({future}, timeout=self._pace.hangs_after_s)
        if not done:
            self._say_unknown(f"the accelerators' driver has not answered for {self._pace.hangs_after_s:g} s")
        return await future

    # ------------------------------------------------------------ telling

    def _tell(self, adapter: Accelerators, seen: Seen, readings: Sequence[Sample]) -> None:
        expected = adapter.expected(self._environment.get(INSTANCE_TYPE, ""))
        report = HardwareReport(adapter.vendor, seen.state, seen.devices, seen.says, time.time(), expected)
        self._gauge.show(report, readings)
        self._say(report)

    def _say(self, report: HardwareReport) -> None:
        """Only what has changed."""
        if self._last is None or replace(self._last, at=report.at) != report:
            self._last = report
            self._report(report)

    def _say_unknown(self, why: str) -> None:
        last = self._last
        devices = tuple(replace(device, state=HardwareState.UNKNOWN) for device in last.devices) if last else ()
        vendor = last.vendor if last else "unknown"
        report = HardwareReport(vendor, HardwareState.UNKNOWN, devices, why, time.time(), last.expected if last else None)
        self._gauge.show(report, ())
        self._say(report)

    def _owe(self) -> None:
        """Faults have been told that may not have arrived yet."""
        if self._confirming is not None:
            self._confirming.cancel()
        self._confirming = asyncio.ensure_future(self._told()) if self._told is not None else _arrived()

    async def _confirm(self, adapter: Accelerators) -> None:
        """Once everything has arrived, the next start of the agent need not tell it again; it must, if what was read here may have been lost."""
        if self._confirming is None or self._confirming.done():
            self._confirming = None
            if not self._has_lost:
                await self._waited(adapter.told)


def _arrived() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def _number(environment: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        message = f"{name} is {text!r}; it must be a number from 0 to {most:g}"
        raise SettingsError(message)
    return value
