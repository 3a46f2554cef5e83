from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from everstep.errors import EverstepError, GroupRetired
from everstep.resilience.construction import Construction, Wanted
from everstep.resilience.own_groups import OwnGroups
from everstep.resilience.unwind import Unwind
from tests.patience import PATIENCE

SCRIPTS = Path(__file__).parent / "scripts"


def told(*arguments: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_process_takes_seats_and_its_objects_stay() -> None:
    assert told(str(SCRIPTS / "seats.py")) == [
        "sharded alone as unwrapped",
        "every seat has its rows, and the seat of before comes back",
        "parameters are the same objects",
        "a step that was left leaves no trace",
    ]


class Escape:
    """One that can be told of a newer generation."""

    def __init__(self) -> None:
        self.newer = threading.Event()

    def is_superseded(self) -> bool:
        return self.newer.is_set()

    def cut(self) -> None:
        """There are no sockets yet."""

    def failed(self, message: str) -> None:
        raise AssertionError(message)


def test_a_constructor_that_waits_in_the_store_for_a_peer_that_never_comes_is_left() -> None:
    """Not a socket, so no fence reaches it: one of the groups of this rank is complete, of the other the peer has died."""
    escape, store = Escape(), dist.HashStore()
    whole, half = dist.PrefixStore("whole", store), dist.PrefixStore("half", store)
    peer = threading.Thread(target=Construction("127.0.0.1", None).build, args=(whole, 1, 2, escape), daemon=True)
    peer.start()
    threading.Timer(0.3, escape.newer.set).start()
    began = time.monotonic()
    with pytest.raises(Unwind):
        Construction("127.0.0.1", None).build_all({"whole": Wanted(whole, 0, 2), "half": Wanted(half, 0, 2)}, escape)
    assert time.monotonic() - began < 4.0 * PATIENCE


def test_names_of_groups_are_the_same_after_a_construction_that_failed() -> None:
    counted, *ours = told("-c", NAMES)
    assert counted == "torch alone: 1", "torch's own initialisation no longer leaks its counter; the detour may go"
    assert ours == ["0 own/a", "0 own/a"]


NAMES = """
import datetime, torch.distributed as dist
from torch.distributed import distributed_c10d
from everstep.resilience.construction import Construction, Wanted
from everstep.resilience.escapes import Alone
from everstep.resilience.own_groups import OwnGroups

try:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2, timeout=datetime.timedelta(seconds=0.5))
except Exception:
    print("torch alone:", distributed_c10d._world.group_count)
distributed_c10d._world.group_count = 0

construction, groups = Construction("127.0.0.1", None), OwnGroups()
construction.register()
group = groups.declare("own/a", None)
for _ in range(2):
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=0.5))
    try:
        construction.build(dist.PrefixStore("never", store), 0, 2, Alone())
    except Exception:
        pass
    else:
        raise SystemExit("a group was built without its peer")
    built = construction.build_all({"": Wanted(store, 0, 1), "own/a": Wanted(dist.PrefixStore("a", store), 0, 1)}, Alone())
    construction.install(built.pop(""), store)
    groups.install(built, store, 0, 1, {"own/a"})
    print(dist.group.WORLD.group_name, distributed_c10d._resolve_process_group("own/a").group_name)
    assert distributed_c10d._resolve_process_group("own/a") is group
    assert dist.get_world_size(group) == 1
    construction.uninstall()
"""


def test_a_group_that_waits_for_its_generation_says_so_and_knows_no_members() -> None:
    group = OwnGroups().declare("own/pair", [0, 1])
    assert (group.rank(), group.size()) == (-1, 0)
    with pytest.raises(GroupRetired, match="own/pair"):
        group.current()


def test_groups_of_a_generation_are_those_of_its_rank_and_size() -> None:
    groups = OwnGroups()
    groups.declare("own/all", None)
    groups.declare("own/first", [0, 1])
    groups.declare("own/rows", lambda rank, _size: range(rank - rank % 2, rank - rank % 2 + 2))
    every = set(groups.names)
    found = {name: (one.rank, one.size) for name, one in groups.wanted(dist.HashStore, 3, 4, every).items()}
    assert found == {"own/all": (3, 4), "own/rows": (1, 2)}
    assert set(groups.wanted(dist.HashStore, 0, 4, {"own/first"})) == {"own/first"}


def test_a_group_that_asks_for_ranks_that_are_not_there_is_refused_in_words() -> None:
    groups = OwnGroups()
    groups.declare("own/pair", [0, 2])
    with pytest.raises(EverstepError, match=r"own/pair.*\[0, 2\] in a world of 2.*function"):
        groups.wanted(dist.HashStore, 0, 2, {"own/pair"})
    wrong = OwnGroups()
    wrong.declare("own/odd", lambda _rank, _size: [0])
    with pytest.raises(EverstepError, match="puts rank 1 into"):
        wrong.wanted(dist.HashStore, 1, 2, {"own/odd"})
