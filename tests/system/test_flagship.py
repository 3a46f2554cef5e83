"""Elastic, checkpointless, tiered and on spot nodes, all in one job, while ten things happen to it in an order that is drawn.

``EVERSTEP_TEST_SEED`` repeats an order; ``make flagship`` runs it and prints what happened.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.protocol import FAULTS_VARIABLE
from everstep.testing import arm, at
from tests.everstep import drills
from tests.everstep.scripts import tokens
from tests.system.stack import ENDED, Stack, group, until
from tests.system.test_checkpoints import metrics

pytestmark = pytest.mark.slow
NODES, LEAST, MOST = 7, 2, 4
STEPS, PACE_S, APART = 2500, 0.1, 12
EVENTS = ("kill", "kill", "kill two", "kill a node", "kill a node", "notice", "stop", "hang", "grow", "shrink")
ELASTIC = {"min": 1, "max": MOST, "scaling_timeout": "2s", "faulty_scale_down_timeout": "20s", "snooze": "0s"}
NOTICE_S = 40
CLUSTER = "flagship"


@dataclass
class Voyage:
    """The job, what was done to it, and what was seen of the object store meanwhile."""

    stack: Stack
    job_id: str
    notes: Path
    chance: random.Random
    size: int = 3
    table: list[tuple[str, ...]] = field(default_factory=list)
    reads: dict[str, list[float]] = field(default_factory=dict)

    def pass_through(self, what: str) -> None:
        """Does it, and waits until the job trains again, a dozen steps further on, with as many ranks as it is to have."""
        before = self._calm()
        self.count_reads()
        began, told = time.monotonic(), getattr(self, "_" + what.replace(" ", "_"))(members(before))
        job = until(f"a new generation after {what}: {told}", lambda: self._newer(before), 90)
        job = self.stack.await_step(self.job_id, job["step"] + APART, 90)
        took = f"{time.monotonic() - began:.1f} s"
        causes = "; ".join(one["cause"] for one in job["generations"][before["generation"] :])
        self.table.append((str(before["step"]), what, told, took, str(job["world_size"]), causes))

    def count_reads(self) -> None:
        for instance in self.stack.running(CLUSTER):
            try:
                counted = metrics(self.stack, instance)
            except (httpx.TransportError, OSError) as error:  # a node that is on its way out, of which the last count stands
                print(f"no count of {instance}: {error}")
            else:
                reads = sum(value for name, value in counted.items() if 'calls_total{kind="reads"}' in name)
                self.reads.setdefault(instance, []).append(reads)

    def _calm(self) -> dict[str, Any]:
        """It trains, at the size that it is to have, and a spare stands ready."""

        def is_calm() -> dict[str, Any] | None:
            job = self.stack.job(self.job_id)
            assert job["status"] not in ENDED, f"{job['status']}: {job['why']}"
            warm = [one for one in job["processes"] if one["rank"] is None and one["status"] == "Ready"]
            return job if job["status"] == "Training" and job["world_size"] == self.size and warm else None

        return until(f"{self.size} ranks and a spare", is_calm, 150)

    def _newer(self, before: dict[str, Any]) -> dict[str, Any] | None:
        job = self.stack.job(self.job_id)
        assert job["status"] not in ENDED, f"{job['status']}: {job['why']}"
        return job if job["generation"] > before["generation"] and job["status"] == "Training" else None

    # ------------------------------------------------------------ what happens

    def _kill(self, ranks: list[dict[str, Any]]) -> str:
        victim = self.chance.choice(ranks)
        os.kill(victim["pid"], signal.SIGKILL)
        return f"rank {victim['rank']}"

    def _kill_two(self, ranks: list[dict[str, Any]]) -> str:
        one, other = self.chance.sample(ranks, 2) if len(ranks) > 2 else (ranks[0], ranks[0])
        os.kill(one["pid"], signal.SIGKILL)
        if other is not one:
            os.kill(other["pid"], signal.SIGKILL)
        return f"ranks {one['rank']} and {other['rank']}"

    def _kill_a_node(self, ranks: list[dict[str, Any]]) -> str:
        victim = self.chance.choice(ranks)
        self.stack.kill_node(victim["instance_id"])
        return f"the node of rank {victim['rank']}"

    def _notice(self, ranks: list[dict[str, Any]]) -> str:
        victim = self.chance.choice(ranks)
        self.stack.rest.post("/v1/faults", {"kind": "spot-notice", "target": victim["instance_id"], "seconds": NOTICE_S})
        return f"the node of rank {victim['rank']} goes in {NOTICE_S} s"

    def _stop(self, ranks: list[dict[str, Any]]) -> str:
        victim = self.chance.choice(ranks)
        os.kill(victim["pid"], signal.SIGSTOP)
        return f"SIGSTOP to rank {victim['rank']}"

    def _hang(self, ranks: list[dict[str, Any]]) -> str:
        (self.notes / "hang").touch()
        claims = self.notes / "faults.fired"
        until("a rank hangs", lambda: list(claims.iterdir()), 20)
        (self.notes / "hang").unlink()
        return f"rank {json.loads(next(claims.iterdir()).read_text())['rank']} of {len(ranks)} does nothing any more"

    def _grow(self, _ranks: list[dict[str, Any]]) -> str:
        return self._resize(1 if self.size < MOST else -1)

    def _shrink(self, _ranks: list[dict[str, Any]]) -> str:
        return self._resize(-1 if self.size > LEAST else 1)

    def _resize(self, by: int) -> str:
        self.size += by
        self.stack.rest.post(f"/v1/jobs/{self.job_id}/resize", {"replicas": self.size})
        return f"to {self.size} ranks"


def members(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The processes of its ranks; one that is lost is told with the rank that it had."""
    return sorted(
        (one for one in job["processes"] if one["rank"] is not None and one["status"] == "Ready"), key=lambda one: one["rank"]
    )


@pytest.fixture
def cluster(stack: Stack):
    tiers = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
    workers = group("workers", NODES, CapacityRequirements={"Spot": {}})
    stack.create_cluster(CLUSTER, workers, TieredStorageConfig=tiers, NodeRecovery="Automatic", NodeProvisioningMode="Continuous")
    yield CLUSTER
    stack.delete_cluster(CLUSTER)


def submitted(stack: Stack, notes: Path) -> str:
    arm(notes / "faults", [at("drill/hang").hang()])
    script = [str(drills.SCRIPT), "ddp", str(notes), str(STEPS), str(notes / "faults"), str(PACE_S)]
    return stack.submit(
        CLUSTER,
        replicas=3,
        spares=1,
        command=[sys.executable, *script],
        working_dir=str(drills.SCRIPT.parent),
        seed=tokens.SEED,
        env={FAULTS_VARIABLE: str(notes / "faults")},
        elastic=ELASTIC,
        checkpoint={"memory_every": 5, "durable_every": 25},
        max_restarts=1000,
        hang_after="6s",
    )


def printed(seed: int, table: list[tuple[str, ...]]) -> None:
    rows = [("step", "what", "to whom", "12 steps on after", "ranks", "generations since"), *table]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\nseed {seed}")
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


@pytest.mark.timeout(1800)
def test_a_job_that_is_all_four_things_at_once_loses_nothing_to_ten_events(stack: Stack, cluster: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed {seed}")
    chance = random.Random(seed)
    events = list(EVENTS)
    chance.shuffle(events)
    voyage = Voyage(stack, submitted(stack, tmp_path), tmp_path, chance)
    try:
        stack.await_step(voyage.job_id, 10, 120)
        for what in events:
            voyage.pass_through(what)
        voyage.count_reads()
        (tmp_path / "hurry").touch()
        job = stack.await_job(voyage.job_id, 300)
    finally:
        printed(seed, voyage.table)
    assert (job["status"], job["restarts"], job["steps_lost"]) == ("Succeeded", 0, 0), job["why"]
    sources = {member["source"] for generation in job["generations"] for member in generation["members"]}
    assert not sources & {"store", "memory"}, f"while a replica lives nothing is read: {sources}"
    assert all(counts[0] == counts[-1] for counts in voyage.reads.values()), f"reads of the object store: {voyage.reads}"
    check_steps(stack.losses(voyage.job_id), tmp_path)


def check_steps(told: dict[int, float], notes: Path) -> None:
    """Every step was committed once, from the samples that are its own, by ranks of equal parameters; and the losses are those of an unbroken run."""
    losses = drills.reference(STEPS)
    assert [told.get(step) for step in range(STEPS)] == pytest.approx(losses, rel=1e-7)
    lines = [json.loads(line) for path in notes.glob("*.jsonl") for line in path.read_text().splitlines()]
    attempts, digests = defaultdict(set), defaultdict(set)
    noted: Counter[int] = Counter()
    for line in lines:
        assert line["samples"] == drills.samples_of(line), line
        attempts[line["step"]].add(line["attempt"])
        digests[line["step"]].add(line["digest"])
        noted[line["step"]] += len(line["samples"])
    assert set(attempts) == set(range(STEPS))
    assert {step: found for step, found in attempts.items() if len(found) > 1} == {}, "a committed step was trained again"
    assert {step: found for step, found in digests.items() if len(found) > 1} == {}, "ranks with parameters that differ"
    assert max(noted.values()) == tokens.GLOBAL_BATCH
    short = [step for step, count in noted.items() if count < tokens.GLOBAL_BATCH]
    print(
        f"{len(lines)} shares of {STEPS} steps noted; {len(short)} steps are short of what a rank that died in them would have noted"
    )
    assert len(short) <= len(EVENTS) + 2
