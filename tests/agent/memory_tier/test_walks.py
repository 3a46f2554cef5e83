"""Random walks of a cluster of real tiers: saves, crashes, losses of memory, outages of the store, in any order. What is told can be had, always."""

from __future__ import annotations

import os
import random
import urllib.error
import urllib.request

import pytest
import xxhash

from agent.memory_tier.objects import Objects
from tests.agent.memory_tier.hands import write_shard
from tests.agent.memory_tier.test_durable import check_store, durable_steps
from tests.checkpoint.tiers import memory_tiers, planned, until

KIB = 1024


class Walk:
    """Three nodes with a rank each. One node at most is dead at a time, and never loses its memory before what it holds has its replicas."""

    def __init__(self, tiers, objects, rng):
        self.tiers, self.objects, self.rng = tiers, objects, rng
        self.step = 0
        self.bodies = {}
        self.spread = 0
        self.is_out = False

    def save(self):
        """Each shard where its rank runs. Once it is spread, one loss cannot take it."""
        self.step += 10
        bodies = [self.rng.randbytes(self.rng.choice([30 * KIB, 300 * KIB])) for _ in self.tiers.nodes]
        is_durable = self.rng.random() < 0.5
        for index, body in [*enumerate(bodies), (len(bodies), f"metadata of {self.step}".encode())]:
            node = self.tiers[index % len(bodies)]
            kind = "metadata" if index == len(bodies) else "data"
            with node.talk() as ask:
                answer = write_shard(ask, index, self.step, body, kind=kind, is_durable=is_durable)
            assert "seal" in answer, answer
            self.bodies[self.step, index] = body

    def settle(self):
        until(lambda: self._is_whole(self.tiers[0], self.step), "every shard has two holders")
        self.spread = self.step

    def crash(self):
        node = self.rng.choice(self.tiers.nodes)
        node.kill()
        self.check(besides=node)
        node.start()

    def lose(self):
        if self.spread != self.step:
            self.settle()
        node = self.rng.choice(self.tiers.nodes)
        left = [one for one in self.tiers if one is not node]
        node.lose()
        self.tiers.tell(present=left)
        self.check(besides=node)
        for one in left:
            until(lambda one=one: self._is_whole(one, self.spread), "every shard has two holders again")
        node.start()
        self.tiers.tell()

    def toggle(self):
        self.is_out = not self.is_out
        self.tiers.tell(is_store_out=self.is_out)

    def check(self, besides=None):
        """Whatever is told as complete can be had, byte for byte, from any node that lives; what was spread is told."""
        check_store(self.objects)
        node = self.rng.choice([one for one in self.tiers if one is not besides])
        with node.talk() as ask:
            found = ask("find", step=None, limit=3)["steps"]
        if self.spread and besides is None:
            assert found[0]["step"] >= self.spread, found
        for one in found:
            for index in range(one["world_size"] + 1):
                assert shard_at(node, index, one["step"]) == self.bodies[one["step"], index], (one["step"], index)

    def _is_whole(self, node, step):
        with node.talk() as ask:
            found = ask("find", step=step, limit=1)["steps"]
        return found and all(len(holders) >= 2 for holders in found[0]["shards"])


def shard_at(node, index, step):
    request = urllib.request.Request(f"{node.url}/v1/cp/checkpoints/ns/{index}/{step}")
    request.add_header("Authorization", f"Bearer {node.environment()['EVERSTEP_CHECKPOINT_TOKEN']}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            body = answer.read()
            assert answer.headers["Everstep-Digest"] == xxhash.xxh3_128_hexdigest(body)
            return body
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read()!r}"


def walk(tmp_path, *, moves):
    seed = int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    objects = Objects((tmp_path / "objects").as_uri(), {})
    with memory_tiers(tmp_path, 3, memory_mib=2048, namespaces=[planned(replicas=2)]) as tiers:
        found = Walk(tiers, objects, rng)
        found.save()
        for _ in range(moves):
            move = rng.choice([found.save, found.save, found.settle, found.crash, found.lose, found.toggle, found.check])
            print(move.__name__, end=" ", flush=True)
            move()
        tiers.tell(is_store_out=False)
        found.settle()
        found.check()
        durable = durable_steps(objects)
        until(lambda: all(_backlog(node) == 0 for node in tiers), f"nothing waits to be drained; durable are {durable}", 60)
        check_store(objects)


def _backlog(node):
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith("everstep_tier_backlog_bytes"))


def test_whatever_happens_to_a_cluster_of_tiers_what_is_told_can_be_had(tmp_path):
    walk(tmp_path, moves=10)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_happens_for_long_to_a_cluster_of_tiers_what_is_told_can_be_had(tmp_path):
    walk(tmp_path, moves=120)
