"""``python -P -m agent``: the node's agent. Ends with 0 when asked to, and with GONE when the node has been released."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import uuid
from collections.abc import Callable

from agent.client import ControlPlane
from agent.faults import Faults, Means, Running
from agent.health.examiner import Examiner
from agent.health.limits import Limits
from agent.identity import Identity
from agent.lifecycle import Lifecycle
from agent.logs import Logs
from agent.loop import Agent, Parts
from agent.monitor import Monitor, Pace
from agent.network import Network
from agent.notices import Notices
from agent.outbox import Outbox
from agent.pauses import Pauses
from agent.settings import Settings, SettingsError
from agent.supervisor import Supervisor
from agent.tier import Tier, TierSettings
from everstep.protocol import VERSION

GONE = 64
"""The node has been released: whoever started this agent must end the node instead of starting it again."""
_BOOT_TOKEN = "EVERSTEP_BOOT_TOKEN"  # noqa: S105  (a variable's name)
_SECRETS = (_BOOT_TOKEN, "PYTHONPATH", "PYTHONHOME")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = Settings.from_environment()
        Limits.read(os.environ)
        Pace.read(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"agent: {error}\n")
        return 2
    return GONE if asyncio.run(_run(settings)) else 0


async def _run(settings: Settings) -> bool:
    loop = asyncio.get_running_loop()
    agent = Agent(_parts(settings, loop.time, dict(os.environ)))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.ask_to_end)
    return await agent.run()


def _parts(settings: Settings, clock: Callable[[], float], environ: dict[str, str]) -> Parts:
    outbox = Outbox()
    state_dir = settings.state_dir
    unsealed = {name: value for name, value in environ.items() if name != _BOOT_TOKEN}
    tier = Tier(TierSettings(state_dir, settings.memory_tier_dir, unsealed), outbox.put)
    supervisor = Supervisor(
        node_id=settings.instance_id,
        address=settings.address,
        state_dir=state_dir,
        report=outbox.put,
        environment=environ,
        variables=tier.variables,
        prefetch_dir=settings.prefetch_dir,
    )
    network = Network()
    notices = Notices(state_dir=state_dir, environment=unsealed, tell=supervisor.evacuate, report=outbox.put)
    means = Means(Running(supervisor.inventory, supervisor.record), network, tier.strike, notices.announce, unsealed)
    return Parts(
        settings=settings,
        version=VERSION,
        identity=Identity.load(state_dir, new_boot=uuid.uuid4().hex),
        supervisor=supervisor,
        control=ControlPlane(settings.api_url, network),
        outbox=outbox,
        pauses=Pauses(random.Random()),  # noqa: S311  (jitter)
        lifecycle=Lifecycle(
            state_dir=state_dir,
            object_store_url=settings.object_store_url,
            environment={name: value for name, value in environ.items() if name not in _SECRETS},
            clock=clock,
        ),
        logs=Logs(state_dir, outbox.put),
        faults=Faults(settings.instance_id, state_dir, means, report=outbox.put, told=outbox.emptied),
        examiner=_examiner(settings, unsealed, outbox, means.runs),
        tier=tier,
        monitor=_monitor(settings, unsealed, outbox, supervisor),
        notices=notices,
    )


def _monitor(settings: Settings, environment: dict[str, str], outbox: Outbox, supervisor: Supervisor) -> Monitor:
    return Monitor(
        node_id=settings.instance_id,
        state_dir=settings.state_dir,
        environment=environment,
        report=outbox.put,
        told=outbox.emptied,
        inventory=supervisor.inventory,
    )


def _examiner(settings: Settings, environment: dict[str, str], outbox: Outbox, runs: Running) -> Examiner:
    return Examiner(
        node_id=settings.instance_id,
        address=settings.address,
        processors=settings.vcpus,
        state_dir=settings.state_dir,
        environment=environment,
        report=outbox.put,
        is_busy=lambda: bool(runs.running()),
    )


if __name__ == "__main__":
    sys.exit(main())
