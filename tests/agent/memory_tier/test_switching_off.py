"""A tier that is switched off: what was to be durable goes first, within bounds, and what does not is said. And one whose tests are killed under it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from agent.memory_tier.commit import Durable
from agent.memory_tier.objects import Objects
from everstep.tiers import TierReport
from tests.agent.memory_tier.hands import save_step
from tests.checkpoint.tiers import ROOT, memory_tiers, planned, until

MIB = 1 << 20
_PROGRAM = """
import sys, time
from pathlib import Path
from tests.checkpoint.tiers import memory_tiers
with memory_tiers(Path(sys.argv[1])) as tiers:
    print(tiers[0].pid, tiers[0].folder, tiers[0].home.parent, flush=True)
    time.sleep(600)
"""


def reports(node):
    return [one for one in node.reports if isinstance(one, TierReport)]


def runs(pid):
    """One that has ended may stay a zombie for as long as whoever inherited it likes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def off_report(tiers):
    until(lambda: not tiers[0].folder.exists(), "the memory is given back")
    return until(
        lambda: next((one for one in reports(tiers[0]) if (one.plan, one.used_bytes) == (tiers.plan.number, 0)), None),
        "that it is off",
    )


def test_a_tier_that_is_switched_off_makes_durable_first_what_was_to_be_durable(tmp_path):
    slow = {"EVERSTEP_MEMORY_TIER_DRAIN_MIB_S": "12"}
    with memory_tiers(tmp_path, environment=slow, namespaces=[planned(replicas=1)]) as tiers:
        save_step(tiers[0], 10, content=bytes(24 * MIB), is_durable=True)
        tiers.tell(allocation_percent=None)
        until(lambda: not tiers[0].socket.exists(), "nothing is saved here any more")
        assert off_report(tiers).note is None
        looks = Durable(Objects(tiers.object_store.as_uri(), {}))
        assert looks.steps("ns") == (10,)
        looks.close()


def test_a_tier_that_is_switched_off_while_the_store_is_out_says_what_is_lost_and_does_not_wait(tmp_path):
    with memory_tiers(tmp_path, namespaces=[planned(replicas=1)]) as tiers:
        tiers.tell(is_store_out=True)
        save_step(tiers[0], 10, content=bytes(2 * MIB), is_durable=True)
        until(lambda: any(one.outage for one in reports(tiers[0])), "the outage is told")
        began = time.monotonic()
        tiers.tell(allocation_percent=None)
        note = off_report(tiers).note
        assert time.monotonic() - began < 20
        assert "2.0 MiB of steps that were to be durable were given up" in note
        assert "has not answered" in note


def test_tiers_of_a_test_run_that_is_killed_end_with_it(tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with program:
        pid, folder, home = program.stdout.readline().split()
        assert runs(pid)
        program.send_signal(signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)
    until(lambda: not runs(pid) and not Path(folder).exists(), "neither process nor memory is left")
