"""How many nodes of a simulated fleet one API process bears, and what each costs the fleet: ``python -m benchmarks.fleet --nodes 2000``.

The API and the fleet are processes of their own; the database is an embedded one that ends with the benchmark. The nodes' rows are written before
their hosts are launched, as workers would have left them. Told are the seconds until all have registered, hold a stream and have reported their
lifecycle, the beats that arrived a second after that, and the memory of the fleet's process.
"""

from __future__ import annotations

import argparse
import base64
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import func, select

from everstep.embedded import probes
from everstep.embedded.children import free_port
from everstep.embedded.postgres import ephemeral_postgres
from models.access.secrets import boot_token
from models.clock import WallClock
from models.ids import InstanceId
from models.node.changes import settle_launched
from models.node.states import NodeState
from models.node.table import Node
from models.session import Sessions, connect, unit_of_work
from models.session import sessions as session_factory
from tests import postgres as db
from tests import rows
from tests.live import MASTER_KEY
from workers.providers.base import HostSpec
from workers.providers.simulated import SimulatedProvider
from workers.providers.simulated_fleet import DOOR, FleetProvider

ROOT = Path(__file__).parents[1]
WATCHED_S = 15.0
_START_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    count = parser.parse_args().nodes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(ephemeral_postgres(folder / "pg"))
        url = db.create_database(url, "fleet")
        db.migrate(url)
        port = free_port()
        started = [_api(folder, url, port)]
        stack.callback(_end, started)
        started.append(_fleet(folder, f"http://127.0.0.1:{port}"))
        engine = connect(url, pool_size=2)
        stack.callback(engine.dispose)
        _measure(session_factory(engine), FleetProvider(folder / "fleet"), started[-1].pid, count)


def _api(folder: Path, database_url: str, port: int) -> subprocess.Popen[bytes]:
    told = {
        "EVERSTEP_DATABASE_URL": database_url,
        "EVERSTEP_BROKER_URL": "redis://127.0.0.1:1/0",
        "EVERSTEP_MASTER_KEY": base64.b64encode(MASTER_KEY).decode(),
    }
    command = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", str(port), "--no-access-log"]
    with (folder / "api.log").open("ab") as log:
        api = subprocess.Popen(command, cwd=ROOT, env=os.environ | told, stdout=log, stderr=log)
    _until(lambda: isinstance(probes.http_status(port, "/healthz"), tuple), _START_S)
    return api


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        process.kill()
        process.wait()


def _fleet(folder: Path, api_url: str) -> subprocess.Popen[bytes]:
    scenario = folder / "scenario.yaml"
    scenario.write_text("seed: 1\nboot: {seconds: [0, 5], lifecycle_seconds: [0, 1]}\n")
    told = {"EVERSTEP_HOME_DIR": str(folder), "EVERSTEP_API_URL": api_url, "EVERSTEP_SIMULATION": str(scenario)}
    with (folder / "fleet.log").open("ab") as log:
        fleet = subprocess.Popen([sys.executable, "-m", "workers.fleet"], cwd=ROOT, env=os.environ | told, stdout=log, stderr=log)
    _until((folder / "fleet" / DOOR).exists, _START_S)
    return fleet


def _measure(sessions: Sessions, provider: FleetProvider, pid: int, count: int) -> None:
    specs = _wished(sessions, count)
    before = _resident_kib(pid)
    began = time.monotonic()
    for spec in specs:
        provider.launch(spec)
    print(f"{count} hosts launched in {time.monotonic() - began:.1f} s, a call each")
    _until(lambda: _serving(sessions) == count, 600)
    print(f"{count} nodes serve after {time.monotonic() - began:.1f} s")
    first, at = _beats(sessions), time.monotonic()
    time.sleep(WATCHED_S)
    print(f"{(_beats(sessions) - first) / (time.monotonic() - at):.0f} beats a second arrive")
    silent = func.count().filter(Node.last_seen < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, 6))
    with unit_of_work(sessions) as session:
        print(f"{session.scalar(select(silent))} nodes have been silent for more than 6 s")
    after = _resident_kib(pid)
    print(f"the fleet holds {after / 1024:.0f} MiB, {(after - before) / count:.1f} KiB a node")


def _wished(sessions: Sessions, count: int) -> list[HostSpec]:
    likeness, specs, now = SimulatedProvider(capacity=count), [], WallClock().now()
    with unit_of_work(sessions) as session:
        of = rows.cluster(session, groups=(rows.group_spec(count=count),))
        for _ in range(count):
            node = rows.node(session, of, state=NodeState.REQUESTED)
            specs.append(HostSpec(node.id, node.instance_type, 4, 8192, boot_token(MASTER_KEY, node.id)))
            host = likeness.launch(specs[-1])
            settle_launched(session, node, instance_id=InstanceId(host.instance_id), address=host.address, now=now)
    return specs


def _serving(sessions: Sessions) -> int:
    serves = (Node.lifecycle_done, Node.facts.has_key("stream"), Node.beat_sequence > 0)
    with unit_of_work(sessions) as session:
        return session.scalar(select(func.count()).select_from(Node).where(*serves)) or 0


def _beats(sessions: Sessions) -> int:
    with unit_of_work(sessions) as session:
        return int(session.scalar(select(func.sum(Node.beat_sequence))) or 0)


def _resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _until(claim: Callable[[], object], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not claim():
        if time.monotonic() > deadline:
            sys.exit(f"not within {within_s} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
