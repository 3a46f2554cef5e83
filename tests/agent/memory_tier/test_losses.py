"""Several nodes, a step's shards spread over them, and a random schedule of kills and losses, one at a time.

A step counts as safe when each of its shards has two copies. Whatever happens to one node afterwards, every node that is left finds that step or a newer
one, and every shard of it can be had through every door, with the bytes that were written. The object store stays empty: nothing is read of it.
"""

from __future__ import annotations

import http.client
import random

import pytest

from everstep.shards import PORT
from tests.agent.memory_tier.hands import KIB, write_shard
from tests.agent.memory_tier.writer import content
from tests.checkpoint.tiers import TOKEN, memory_tiers, planned, until

WORLD = 3
NBYTES = 150 * KIB


def save(tiers, step):
    """Rank r on node r; rank 0 the metadata. Returns the name of the save."""
    name = f"save-{step}"
    for rank in range(WORLD):
        with tiers[rank].talk() as ask:
            assert "seal" in write_shard(ask, rank, step, content(step, rank, NBYTES), save=name)
            if rank == 0:
                assert "seal" in write_shard(ask, WORLD, step, content(step, WORLD, NBYTES), kind="metadata", save=name)
    return name


def await_replicas(tiers, step):
    for node in tiers:
        with node.talk() as ask:
            assert ask("wait", step=step, replicas=2, durable=False, seconds=30)["replicas"] >= 2, f"{node.name} at step {step}"


def newest(node):
    with node.talk() as ask:
        steps = ask("find", step=None, limit=1)["steps"]
    return steps[0]["step"] if steps else None


def fetch(node, index, step):
    connection = http.client.HTTPConnection(node.address, PORT, timeout=30)
    try:
        connection.request("GET", f"/v1/cp/checkpoints/ns/{index}/{step}", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert answer.status == 200, (node.name, index, step, answer.read())
        return answer.read()
    finally:
        connection.close()


def check(nodes, safe):
    for node in nodes:
        found = until(lambda node=node: (newest(node) or -1) >= safe and newest(node), f"{node.name} finds step {safe}")
        for index in range(WORLD + 1):
            assert fetch(node, index, found) == content(found, index, NBYTES)


def kill(tiers, victim, _chance):
    victim.kill()
    return [node for node in tiers if node is not victim]


def kill_in_a_save(tiers, victim, chance):
    """Half a step is left behind, which must never be found."""
    step = 10_000 + chance.randrange(1000)
    with tiers[0].talk() as ask:
        write_shard(ask, 0, step, b"half", save="half")
    return kill(tiers, victim, chance)


def lose(tiers, victim, _chance):
    victim.lose()
    return [node for node in tiers if node is not victim]


def kill_everybody(tiers, _victim, _chance):
    for node in tiers:
        node.kill()
    for node in tiers:
        node.start()
    return list(tiers)


EVENTS = (kill, kill_in_a_save, lose, kill_everybody)


def schedule(tmp_path, *, seed, rounds):
    print(f"seed {seed}")
    chance = random.Random(seed)
    with memory_tiers(tmp_path, WORLD, namespaces=[planned(keep_in_memory=1, replicas=2)]) as tiers:
        for number in range(1, rounds + 1):
            step = number * 10
            save(tiers, step)
            await_replicas(tiers, step)
            victim = chance.choice(tiers.nodes)
            event = chance.choice(EVENTS)
            print(f"round {number}: {event.__name__} {victim.name}")
            check(event(tiers, victim, chance), step)
            if not victim.is_alive:
                victim.start()
            check(tiers, step)
        assert not list(tiers.object_store.rglob("*.pt"))


def test_one_node_at_a_time_is_lost_and_no_safe_step_is(tmp_path):
    schedule(tmp_path, seed=random.randrange(1 << 32), rounds=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_are_lost_one_after_the_other_and_no_safe_step_is(tmp_path):
    schedule(tmp_path, seed=random.randrange(1 << 32), rounds=40)
