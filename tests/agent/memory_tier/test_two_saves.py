"""Two saves of one step on their way to one place in the object store, whoever comes first, last, or between: a manifest tells of its own bytes or is not there."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import xxhash

from agent.memory_tier.commit import Durable, Overtaken
from agent.memory_tier.objects import Objects
from everstep.shards import ShardKind, manifest_key, seal_key, shard_key
from tests.agent.memory_tier.nodes import Clock, Node, content, settle


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def nodes(shm, tmp_path, clock):
    with ExitStack() as opened:

        def make(*names):
            made = [Node(name, shm, (tmp_path / "store").as_uri(), clock) for name in names]
            for node in made:
                opened.callback(node.close)
                node.plan()
            return made

        yield make


@pytest.fixture
def writers(tmp_path):
    """Makes writers of the one object store. ``between`` is called when one is about to put bytes."""
    with ExitStack() as opened:

        def make(between=None):
            def pieces(body):
                between()
                return iter([body])

            made = Durable(Objects((tmp_path / "store").as_uri(), {}), pieces=pieces if between else None)
            opened.callback(made.close)
            return made

        yield make


def check(durable, step=10):
    """The manifest that stands there, if one does, after every byte has been compared with it."""
    manifest = durable.manifest("ns", step)
    for shard in manifest.shards if manifest else ():
        body = durable._objects.get_range(shard_key("ns", shard.index, step, manifest.world_size), 0, shard.size)
        assert xxhash.xxh3_128_hexdigest(body) == shard.digest, (manifest.save, shard.index)
    return manifest


def saved(node, name, *, world=1):
    """(seal, body) of the shards of a save and, last, of its metadata; seconds pass meanwhile."""
    node.clock.now += 5
    bodies = [content() for _ in range(world + 1)]
    return [
        (node.save(10, body, index=at, world=world if at == world else None, save=name), body) for at, body in enumerate(bodies)
    ]


def put_all(durable, parts):
    for seal, body in parts:
        durable.put(seal, memoryview(body))
    return durable.commit(parts[-1][0], {}, parts[-1][0].written_at)


def test_an_older_save_that_turns_up_late_leaves_the_durable_younger_one_alone(nodes, writers, clock):
    away, other = nodes("away", "other")
    saved(away, "older")
    saved(other, "younger")
    settle(clock, other, seconds=5)
    settle(clock, away, other, seconds=20)
    assert check(writers()).save == "younger"
    assert "a younger save" in away.draining.backlog().note
    assert away.draining.backlog().nbytes == 0, "and it is not tried for ever"


def test_an_older_save_takes_no_shard_from_a_younger_one_under_way(nodes, writers, clock):
    away, other = nodes("away", "other")
    older, younger = saved(away, "older", world=2), saved(other, "younger", world=2)
    durable = writers()
    durable.put(younger[1][0], memoryview(younger[1][1]))
    with pytest.raises(Overtaken):
        durable.put(older[1][0], memoryview(older[1][1]))
    settle(clock, away, other, seconds=20)
    assert check(durable).save == "younger"


@pytest.mark.parametrize("done", range(4))
def test_a_younger_save_takes_the_place_of_an_older_one_at_any_point(nodes, writers, done):
    (node,) = nodes("a")
    older, younger = saved(node, "older", world=2), saved(node, "younger", world=2)
    durable = writers()
    for seal, body in older[:done]:
        durable.put(seal, memoryview(body))
    assert (durable.commit(older[-1][0], {}, node.clock()) is not None) == (done == len(older))
    assert put_all(durable, younger).save == "younger"
    assert check(durable).save == "younger"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_upload_that_ends_after_another_save_was_committed_takes_that_manifest_away(nodes, writers, at):
    (node,) = nodes("a")
    older, younger = saved(node, "older", world=2), saved(node, "younger", world=2)
    meanwhile = []
    late = writers(between=lambda: meanwhile or meanwhile.append(put_all(writers(), younger)))
    late.put(older[at][0], memoryview(older[at][1]))
    assert meanwhile[0].save == "younger", "it was committed in the middle of the upload"
    assert check(late) is None


def test_who_commits_by_what_it_saw_long_ago_makes_no_manifest_of_another_save_s_bytes(nodes, writers):
    (node,) = nodes("a")
    older, younger = saved(node, "older", world=2), saved(node, "younger", world=2)
    durable = writers()
    for seal, body in older:
        durable.put(seal, memoryview(body))
    seen = {seal.index: seal for seal, _ in older if seal.kind is ShardKind.DATA}
    durable.put(younger[0][0], memoryview(younger[0][1]))
    assert durable.commit(older[-1][0], dict(seen), node.clock()) is None
    assert check(durable) is None
    assert put_all(durable, younger).save == "younger"
    assert durable.commit(older[-1][0], dict(seen), node.clock()) is None
    assert check(durable).save == "younger", "nor does it take away a true one"


@pytest.mark.parametrize("garbage", [b"", b"[]", b'{"step": 10}', b"\xff\x00", b"[" * 100_000])
def test_files_that_nobody_can_read_are_in_nobody_s_way(nodes, writers, clock, garbage):
    (node,) = nodes("a")
    durable = writers()
    saved(node, "only")
    durable._objects.put(manifest_key("ns", 10), garbage)
    durable._objects.put(seal_key("ns", 0, 10, 1), garbage)
    settle(clock, node, seconds=20)
    assert check(durable).save == "only"
