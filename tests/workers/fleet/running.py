"""A fleet in a thread of the test process, behind its real door, against a real agents' door."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workers.fleet.door import Door
from workers.fleet.fleet import Fleet
from workers.fleet.scenario import Scenario
from workers.providers.simulated_fleet import FleetProvider

NOWHERE = "http://127.0.0.1:9"
TOKEN = "token-of-the-fleet"


class Running:
    """``fleet`` belongs to the thread's loop: ``ask`` does something there."""

    def __init__(self, scenario: Scenario, api_url: str, directory: Path) -> None:
        self.provider = FleetProvider(directory)
        self._scenario, self._api_url, self._directory = scenario, api_url, directory
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.fleet: Any = None

    def start(self) -> None:
        self._thread.start()
        assert self._is_up.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def ask(self, what: Callable[[Fleet], Any]) -> Any:
        async def done() -> Any:
            return what(self.fleet)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(20)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self.fleet = Fleet(self._scenario, api_url=self._api_url, now_unix=time.time())
        door = Door(self.fleet, self._directory, TOKEN)
        work = asyncio.create_task(self.fleet.run())
        await door.open()
        self._is_up.set()
        await self._over.wait()
        await door.close()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@contextmanager
def running(wire: dict[str, Any], directory: Path, api_url: str = NOWHERE) -> Iterator[Running]:
    fleet = Running(Scenario.read(wire), api_url, directory)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()
