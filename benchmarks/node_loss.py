"""SIGKILL of a whole node → the survivors' next step, with the whole control plane in the loop and a warm spare standing by.

Usage: python -m benchmarks.node_loss [--quick] [--kills 7] [--seed 1] [--no-torchrun] [--json FILE]

An embedded stack of its own, a cluster of 6 local nodes, the demonstration's GPT on 4 of them; every killed node is replaced and its
successor warm before the next one is killed. Beside the phases of each recovery it prints the length of a step: the last phase holds one.
Then torchrun restarts the same model on as many ranks, of which one is killed: there no node is lost, and the last ten steps are done again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import figures, stack, torchrun
from everstep.demo import train_gpt
from everstep.demo.ledger import Ledger
from everstep.demo.story import MEMBERS, kill_node

NODES = MEMBERS + 2
GOAL_S = 1.0
"""The median that a reader is entitled to, on two cores with this model."""


class Bench:
    """One job on one stack, killed again and again."""

    def __init__(self, running: stack.Stack, seed: int) -> None:
        self.stack = running
        self.random = random.Random(seed)  # noqa: S311, it draws moments
        script = Path(train_gpt.__file__)
        self.job = running.submit("bench", script, ["--steps", "1000000"], replicas=MEMBERS, spares=1)

    def one_kill(self) -> dict[str, float]:
        stack.await_("a warm spare", self._is_settled)
        time.sleep(self.random.uniform(0.0, 0.5))
        before = self.job.look()
        members = [process for process in before["processes"] if process["rank"] is not None and process["status"] == "Ready"]
        ledger = Ledger(job=before, killed=self.random.choice(members)["instance_id"], killed_at=time.time())
        kill_node(str(ledger.killed))

        def has_recovered() -> bool:
            ledger.job = self.job.look()
            return ledger.after_kill is not None

        stack.await_("the next step", has_recovered)
        steps = self.job.rest.get(f"/v1/jobs/{self.job.job_id}/steps", after=max(-1, before["step"] - 21))["steps"]
        step_s = statistics.median(step["seconds"] for step in steps if step["number"] < before["step"])
        return {**ledger.timeline(), "one step": round(step_s, 3), "steps lost": float(ledger.job["steps_lost"])}

    def _is_settled(self) -> bool:
        job = self.job.look()
        ready = [process for process in job["processes"] if process["status"] == "Ready"]
        is_whole = len(ready) == MEMBERS + 1 and len(self.stack.running_nodes()) == NODES
        return is_whole and job["status"] == "Training" and job["step"] > (job["generations"][-1]["step"] or 0) + 5


def main() -> None:
    options = _options()
    environment = figures.environment()
    with stack.running(NODES) as running:
        bench = Bench(running, options.seed)
        found = [bench.one_kill() for _ in range(options.kills)]
    with tempfile.TemporaryDirectory(prefix="torchrun-") as folder:
        restarts = [] if options.no_torchrun else _torchrun(options, Path(folder))
    print(figures.told(environment))
    print(f"node killed → next step of the survivors, {len(found)} kills, seconds after SIGKILL (median, min–max)")
    for name in found[0]:
        values = [one[name] for one in found if name in one]
        print(f"  {name:<12} {statistics.median(values):6.3f}   {min(values):.3f}–{max(values):.3f}")
    median = statistics.median(one["first step"] for one in found)
    print(f"goal ≤ {GOAL_S} s: {'met' if median <= GOAL_S else 'NOT met'} ({median:.3f} s)")
    if restarts:
        peer = statistics.median(restarts)
        print(
            f"torchrun, the same model: {peer:.3f} s ({min(restarts):.3f}–{max(restarts):.3f}), {peer / median:.1f} times as long"
        )
    figures.write(options, {"environment": environment, "everstep": found, "torchrun": restarts})


def _torchrun(options: argparse.Namespace, folder: Path) -> list[float]:
    script = Path(__file__).with_name("gpt_torchrun.py")
    return torchrun.kills(script, [], folder, ranks=MEMBERS, count=options.kills, seed=options.seed)


def _options() -> argparse.Namespace:
    parser = figures.parser(__doc__)
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-torchrun", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.kills, options.no_torchrun = 2, True
    return options


if __name__ == "__main__":
    main()
