"""A service that lives and no longer works is started again: only the flow of work can tell."""

import asyncio
import sys

from everstep.embedded.children import Command
from everstep.embedded.home import Home
from everstep.embedded.service import Service
from everstep.embedded.state import Phase, StackState
from everstep.embedded.supervisor import Supervisor

CONSUMER = "import pathlib, signal, sys; pathlib.Path(sys.argv[1]).touch(); signal.pause()"


def test_a_consumer_that_hangs_is_started_again_and_one_with_its_own_probe_is_left_alone(tmp_path):
    home = Home.at(tmp_path / "home")
    home.create()
    works = tmp_path / "works"
    consumer = Command(argv=[sys.executable, "-c", CONSUMER, str(works)], env={})
    other = Command(argv=[sys.executable, "-c", CONSUMER, str(tmp_path / "other")], env={})
    now = StackState(port=1, database_port=2, broker_port=3)
    told = []

    def gate():
        return None if works.exists() else "no work flows"

    async def play():
        crashed = asyncio.Event()

        def tell(name, service):
            told.append((name, service.phase))
            if (name, service.phase) == ("consumer", Phase.CRASHED):
                crashed.set()

        services = [Service("consumer", lambda: consumer), Service("probed", lambda: other, why_not_ready=lambda: None)]
        supervisor = Supervisor(home, now, services, gate=gate, tell=tell, flow_seconds=0.3)
        run = asyncio.create_task(supervisor.run(works.unlink))
        await asyncio.wait_for(crashed.wait(), 20)
        while not works.exists():
            await asyncio.sleep(0.02)
        supervisor.stop()
        await asyncio.wait_for(run, 20)

    asyncio.run(asyncio.wait_for(play(), 60))
    assert ("stack", Phase.CRASHED) in told
    assert ("probed", Phase.CRASHED) not in told
