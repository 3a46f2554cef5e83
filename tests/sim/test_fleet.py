"""A fleet of many nodes in one process, over the real agents' door, and the real control plane that takes care of it."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import select

from models.node.states import NodeState
from models.node.table import Node
from models.notify import NUDGE
from models.session import unit_of_work
from tests.live import wait_for
from tests.sim.live_fleet import live_fleet, wished
from tests.workers.fleet.running import running


@pytest.fixture
def fleet(api_process, listen, tmp_path):
    return lambda wire, **settings: live_fleet(api_process, listen(NUDGE), tmp_path, wire, **settings)


@pytest.mark.slow
def test_two_hundred_nodes_of_one_process_come_to_serve_over_the_real_agents_door(api, sessions, tmp_path):
    """Without workers: what is measured is the fleet and the door. ``benchmarks/fleet.py`` does it with thousands."""
    with running({"seed": 1, "boot": {"seconds": [0, 1], "lifecycle_seconds": [0, 0.5]}}, tmp_path / "fleet", api.url) as fleet:
        began = time.monotonic()
        node_ids = wished(sessions, fleet.provider, 200)
        print(f"launched after {time.monotonic() - began:.1f} s")

        def all_serve() -> bool:
            with unit_of_work(sessions) as session:
                rows_ = session.scalars(select(Node).where(Node.id.in_(node_ids))).all()
                return all(row.lifecycle_done and "stream" in row.facts and row.beat_sequence > 1 for row in rows_)

        wait_for(all_serve, 60)
        print(f"200 nodes serve after {time.monotonic() - began:.1f} s")
        with unit_of_work(sessions) as session:
            hardware = session.scalars(select(Node.facts)).first()["hardware"]
        assert hardware["vendor"] == "cpu"


def test_thirty_of_thirty_two_hosts_that_die_at_once_are_all_launched_anew_within_thirty_seconds(fleet):
    with fleet({"seed": 2}) as here:
        here.serving(32)
        launched = here.counts()["launches"]
        assert here.strike("death", hosts=30) == 30
        began = time.monotonic()
        here.until("30 launches", lambda: here.counts()["launches"] == launched + 30, within_s=30)
        print(f"30 launch calls after {time.monotonic() - began:.2f} s")
        here.until("32 nodes serve", lambda: here.states() == {NodeState.READY: 32}, within_s=60)
        assert here.counts()["hosts"] == 32
