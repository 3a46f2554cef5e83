"""Real tiers with one object store: steps become durable whoever dies at whatever moment, outages lose nothing, losses are mended from memory alone."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import urllib.request

import pytest
import xxhash

from agent.memory_tier.commit import Durable, shard_key_of
from agent.memory_tier.objects import Objects
from everstep.shards import Manifest, Seal, ShardKind, manifest_key, shard_key
from everstep.tiers import DurableReport, TierReport
from tests.agent.memory_tier.hands import write_shard
from tests.checkpoint.tiers import memory_tiers, planned, until

KIB = 1024
MIB = 1 << 20
AGE = "everstep_age_of_last_durable_step_seconds"


def seed_of(test):
    seed = int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"seed of {test}: {seed}")
    return random.Random(seed)


def save(tiers, step, bodies, *, save=None, is_durable=True):
    """Shard by shard, each on the node of its rank, the metadata last and beside rank 0."""
    world = len(bodies)
    for index, body in [*enumerate(bodies), (world, b'{"what": "metadata"}')]:
        node = tiers[index % len(tiers.nodes) if index < world else 0]
        kind = "data" if index < world else "metadata"
        with node.talk() as ask:
            answer = write_shard(ask, index, step, body, kind=kind, save=save, is_durable=is_durable)
        assert "seal" in answer, answer


def durable_steps(objects):
    looks = Durable(objects)
    try:
        return looks.steps("ns")
    finally:
        looks.close()


def check_store(objects):
    """Every manifest tells the truth about every byte of its shards, now. The steps that were looked at."""
    steps = durable_steps(objects)
    for step in steps:
        manifest = Manifest.from_json(objects.look(manifest_key("ns", step)))
        assert [shard.index for shard in manifest.shards] == list(range(manifest.world_size + 1))
        for shard in manifest.shards:
            key = shard_key("ns", shard.index, step, manifest.world_size)
            assert objects.size(key) == shard.size
            assert xxhash.xxh3_128_hexdigest(objects.get_range(key, 0, shard.size)) == shard.digest, (step, shard.index)
    return steps


def metric(node, name):
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), None)


def told(node, kind):
    return [report for report in list(node.reports) if isinstance(report, kind)]


# ------------------------------------------------------------ crashes of the uploader


def sweep(tmp_path, *, points):
    """Kills either tier at random moments of an upload; in between every manifest that stands has to be true."""
    rng = seed_of("the sweep of uploaders")
    objects = Objects((tmp_path / "objects").as_uri(), {})
    with memory_tiers(tmp_path, 2, memory_mib=4096, namespaces=[planned(replicas=1)]) as tiers:
        saved = []
        for number in range(points):
            step = 10 * (number + 1)
            save(tiers, step, [rng.randbytes(rng.choice([200 * KIB, 2 * MIB, 20 * MIB])) for _ in range(2)])
            saved.append(step)
            victim = rng.choice(tiers.nodes)
            time.sleep(rng.uniform(0.0, 0.25))
            victim.kill()
            assert set(check_store(objects)) <= set(saved)
            victim.start()
        until(lambda: durable_steps(objects) == tuple(saved), "every step that was saved is durable", 60)
        assert check_store(objects) == tuple(saved)
        until(lambda: {report.step for report in told(tiers[0], DurableReport)} == set(saved), "who holds the metadata tells each")


def test_an_uploader_killed_at_any_moment_leaves_no_manifest_that_is_not_true(tmp_path):
    sweep(tmp_path, points=20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_uploader_killed_at_very_many_moments_leaves_no_manifest_that_is_not_true(tmp_path):
    sweep(tmp_path, points=100)


def test_an_uploader_killed_while_a_step_is_written_again_leaves_a_true_manifest_or_none(tmp_path):
    rng = seed_of("the sweep of rewriting")
    objects = Objects((tmp_path / "objects").as_uri(), {})
    with memory_tiers(tmp_path, 2, memory_mib=4096, namespaces=[planned(replicas=1)]) as tiers:
        for number in range(8):
            save(tiers, 10, [rng.randbytes(rng.choice([300 * KIB, 18 * MIB])) for _ in range(2)], save=f"save-{number}")
            time.sleep(rng.uniform(0.0, 0.25))
            victim = rng.choice(tiers.nodes)
            victim.kill()
            check_store(objects)
            victim.start()
        until(lambda: _save_of(objects, 10) == "save-7", "the last save is durable", 60)
        check_store(objects)


def _save_of(objects, step):
    if step not in durable_steps(objects):
        return None
    return Manifest.from_json(objects.look(manifest_key("ns", step))).save


# ------------------------------------------------------------ losses


def test_the_shards_of_a_lost_node_get_their_copies_again_without_one_read_of_the_store(tmp_path):
    with memory_tiers(tmp_path, 3, namespaces=[planned(replicas=2)]) as tiers:
        bodies = [os.urandom(300 * KIB) for _ in range(3)]
        save(tiers, 10, bodies, is_durable=True)
        for node in tiers:
            with node.talk() as ask:
                assert ask("wait", step=10, replicas=2, durable=True, seconds=20)["replicas"] >= 2
        tiers[0].lose()
        left = tiers.nodes[1:]
        tiers.tell(present=left)

        def everywhere():
            with left[0].talk() as ask:
                found = ask("find", step=10, limit=1)["steps"]
            return found and all(len(holders) == 2 for holders in found[0]["shards"])

        until(everywhere, "every shard has two holders again")
        for node in left:
            for index, body in enumerate(bodies):
                request = urllib.request.Request(f"{node.url}/v1/cp/checkpoints/ns/{index}/10")
                request.add_header("Authorization", f"Bearer {node.environment()['EVERSTEP_CHECKPOINT_TOKEN']}")
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert answer.read() == body
            assert metric(node, 'everstep_tier_store_calls_total{kind="reads"}') == 0


def test_a_step_becomes_durable_though_its_writer_is_lost_before_it_has_put_anything(tmp_path):
    objects = Objects((tmp_path / "objects").as_uri(), {})
    with memory_tiers(tmp_path, 2, namespaces=[planned(replicas=2)]) as tiers:
        tiers.tell(is_store_out=True)
        save(tiers, 10, [os.urandom(200 * KIB), os.urandom(200 * KIB)])
        with tiers[0].talk() as ask:
            assert ask("wait", step=10, replicas=2, durable=False, seconds=20)["replicas"] == 2
        tiers[0].lose()
        tiers.tell(present=[tiers[1]], is_store_out=False)
        until(lambda: durable_steps(objects) == (10,), "the holder of its replicas puts them", 40)
        check_store(objects)


def test_rank_0_and_the_metadata_may_lie_on_different_nodes(tmp_path):
    objects = Objects((tmp_path / "objects").as_uri(), {})
    with memory_tiers(tmp_path, 2, namespaces=[planned(replicas=1)]) as tiers:
        with tiers[0].talk() as ask:
            write_shard(ask, 0, 10, b"rank 0", is_durable=True)
        with tiers[1].talk() as ask:
            write_shard(ask, 1, 10, b"rank 1", is_durable=True)
            write_shard(ask, 2, 10, b"{}", kind="metadata", is_durable=True)
        until(lambda: durable_steps(objects) == (10,), "it is committed all the same")
        check_store(objects)


def test_a_copy_that_is_corrupted_by_a_fault_is_mended_from_the_other_node(tmp_path):
    with memory_tiers(tmp_path, 2, environment={"EVERSTEP_MEMORY_TIER_SCRUB_S": "1"}) as tiers:
        body = os.urandom(200 * KIB)
        save(tiers, 10, [body], is_durable=False)
        with tiers[0].talk() as ask:
            assert ask("wait", step=10, replicas=2, durable=False, seconds=20)["replicas"] == 2
        struck = tiers[1].strike(kind="corrupt-shard", namespace="ns", step=10, index=0)
        assert struck.outcome == "struck"
        until(lambda: metric(tiers[1], "everstep_tier_corruptions_total"), "the scrub finds it")
        until(lambda: _bytes_at(tiers[1], 0, 10) == body, "it comes back")


def _bytes_at(node, index, step):
    request = urllib.request.Request(f"{node.url}/v1/cp/checkpoints/ns/{index}/{step}?scope=local")
    request.add_header("Authorization", f"Bearer {node.environment()['EVERSTEP_CHECKPOINT_TOKEN']}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()
    except urllib.error.HTTPError:
        return None


# ------------------------------------------------------------ outages


class Saver(threading.Thread):
    """Saves durable steps one after the other until it is ended, as training does; ``saved`` are those that were acknowledged."""

    def __init__(self, tiers, nbytes, pause_s):
        super().__init__(name="saver")
        self._tiers, self._nbytes, self._pause_s = tiers, nbytes, pause_s
        self._ended = threading.Event()
        self.saved = []
        self.error = None

    def run(self):
        try:
            for step in itertools.count(10, 10):
                save(self._tiers, step, [os.urandom(self._nbytes) for _ in self._tiers.nodes])
                self.saved.append(step)
                if self._ended.wait(self._pause_s):
                    return
        except (OSError, AssertionError, ValueError) as error:
            self.error = error

    def end(self):
        self._ended.set()
        self.join()
        assert self.error is None


def outage(tmp_path, *, before_s, out_s, nbytes, memory_mib, pause_s=0.05):
    """Training that saves through an outage of the store. Returns the tiers' reports, and what was saved and is durable at the end."""
    objects = Objects((tmp_path / "objects").as_uri(), {})
    with memory_tiers(tmp_path, 2, memory_mib=memory_mib, namespaces=[planned(replicas=1)]) as tiers:
        saver = Saver(tiers, nbytes, pause_s)
        saver.start()
        time.sleep(before_s)
        until(lambda: metric(tiers[0], AGE) is not None, "something is durable before the outage, and known to be")
        tiers.tell(is_store_out=True)
        until(lambda: any(report.outage for report in told(tiers[0], TierReport)), "the outage is told")
        frozen = durable_steps(objects)
        at = len(saver.saved)
        time.sleep(out_s)
        assert durable_steps(objects) == frozen, "nothing reaches the store"
        assert len(saver.saved) > at, "training goes on saving"
        assert metric(tiers[0], AGE) >= out_s * 0.8
        tiers.tell(is_store_out=False)
        saver.end()
        until(lambda: told(tiers[0], TierReport)[-1].outage is None, "the end of the outage is told")
        until(lambda: durable_steps(objects)[-1] == saver.saved[-1], "the newest step is durable", 60)
        until(lambda: metric(tiers[0], "everstep_tier_backlog_bytes") == 0, "nothing waits any more")
        until(lambda: {report.step for report in told(tiers[0], DurableReport)} == set(durable_steps(objects)), "all are told")
        check_store(objects)
        return tiers, saver.saved, durable_steps(objects)


def test_an_outage_of_the_store_stops_no_save_and_afterwards_all_steps_are_drained_in_order(tmp_path):
    tiers, saved, durable = outage(tmp_path, before_s=0.5, out_s=3.0, nbytes=200 * KIB, memory_mib=2048)
    assert durable == tuple(saved), "there was room for all"
    committed = [report.step for report in told(tiers[0], DurableReport)]
    assert committed == sorted(committed)


def test_an_outage_longer_than_memory_gives_up_the_oldest_and_says_so(tmp_path):
    tiers, saved, durable = outage(tmp_path, before_s=0.3, out_s=4.0, nbytes=3 * MIB, memory_mib=128, pause_s=0.02)
    given_up = sorted(set(saved) - set(durable))
    assert given_up, "there was no room for all"
    assert durable[-1] == saved[-1]
    cap = 32 * MIB
    for node in tiers:
        reports = told(node, TierReport)
        assert all(report.used_bytes <= report.allocated_bytes <= cap for report in reports)
        assert all(report.backlog_bytes <= cap for report in reports)
    assert any("given up before it was durable" in (report.note or "") for node in tiers for report in told(node, TierReport))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_outage_of_two_minutes_is_made_up_for(tmp_path):
    _, saved, durable = outage(tmp_path, before_s=2.0, out_s=120.0, nbytes=200 * KIB, memory_mib=8192, pause_s=0.2)
    assert durable == tuple(saved)


# ------------------------------------------------------------ keys


def test_a_shard_lies_where_the_readers_of_aws_s_package_look_for_it():
    data = Seal("ns", 3, 40, ShardKind.DATA, 1, "", "", 0.0)
    metadata = Seal("ns", 8, 40, ShardKind.METADATA, 1, "", "", 0.0)
    assert shard_key_of(data) == "ns/rank_3/step_40/checkpoint.pt"
    assert shard_key_of(metadata) == "ns/rank_0/step_40/metadata.metadata"


def test_a_node_may_be_told_how_fast_its_shards_go_to_the_store(tmp_path):
    objects = Objects((tmp_path / "objects").as_uri(), {})
    environment = {"EVERSTEP_MEMORY_TIER_DRAIN_MIB_S": "32"}
    with memory_tiers(tmp_path, 1, memory_mib=2048, namespaces=[planned(replicas=1)], environment=environment) as tiers:
        began = time.monotonic()
        save(tiers, 10, [os.urandom(64 * MIB)])
        until(lambda: durable_steps(objects) == (10,), "it is durable")
        assert time.monotonic() - began >= 1.5
        check_store(objects)
