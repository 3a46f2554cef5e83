"""``python -m workers.fleet``: thousands of simulated nodes in one process, until it is ended.

With arguments it speaks to the fleet that runs: ``counts``, ``strike outage --share 0.6 --seconds 30``, ``strike death --hosts 30``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import signal
import sys
import time

from workers.fleet.door import Door
from workers.fleet.fleet import Fleet
from workers.fleet.scenario import Blow, Scenario, ScenarioError
from workers.fleet.settings import FleetSettings
from workers.providers.base import ProviderError
from workers.providers.simulated_fleet import FleetProvider
from workers.settings import SettingsError

log = logging.getLogger(__name__)


def main() -> int:
    asked = _arguments()
    try:
        settings = FleetSettings.from_environ()
        if asked.verb == "run":
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            scenario = Scenario.load(settings.scenario) if settings.scenario else Scenario()
            asyncio.run(_run(settings, scenario))
            return 0
        members = {name: value for name, value in vars(asked).items() if name != "verb"}
        answer = FleetProvider(settings.directory).call(asked.verb, **members)
    except (SettingsError, ScenarioError, ProviderError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.fleet", description=__doc__)
    verbs = parser.add_subparsers(dest="verb")
    verbs.add_parser("run", help="be the fleet (what it does without arguments)")
    verbs.add_parser("counts", help="how the running fleet fares")
    strike = verbs.add_parser("strike", help="strike some of its hosts now")
    strike.add_argument("blow", choices=[str(blow) for blow in Blow])
    strike.add_argument("--share", type=float, default=0.0, help="of the hosts that are up, from 0 to 1")
    strike.add_argument("--hosts", type=int, default=0, help="or exactly so many")
    strike.add_argument("--seconds", type=float, default=0.0, help="how long an outage lasts, in the scenario's time")
    parser.set_defaults(verb="run")
    return parser.parse_args()


async def _run(settings: FleetSettings, scenario: Scenario) -> None:
    fleet = Fleet(scenario, api_url=settings.api_url, now_unix=time.time())
    door = Door(fleet, settings.directory, secrets.token_urlsafe(32))
    work = asyncio.create_task(fleet.run())
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    log.info("the fleet's door is open at %s; its agents go to %s", await door.open(), settings.api_url)
    waiting = asyncio.create_task(asked.wait())
    await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
    await door.close()
    for task in (work, waiting):
        task.cancel()
    await asyncio.gather(work, waiting, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
