"""Where replicas go: every node says the same, nobody holds more than others, and a lost node moves little."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agent.memory_tier.placing import Place, heir, order

names = st.sets(st.text("abcdefgh0123456789-", min_size=1, max_size=12), min_size=2, max_size=12)
zones = st.sampled_from([None, "z1", "z2", "z3"])
places = names.flatmap(lambda found: st.tuples(*(st.builds(Place, st.just(name), zones) for name in sorted(found))))


def chosen(everybody, count):
    return {place.node: order(place.node, everybody, count)[:count] for place in everybody}


@given(places, st.integers(1, 4))
def test_every_other_node_is_named_once_and_never_the_node_itself(everybody, count):
    for place in everybody:
        named = order(place.node, everybody, count)
        assert sorted(named) == sorted(one.node for one in everybody if one != place)


@given(places, st.integers(1, 4), st.randoms())
def test_the_order_in_which_nodes_are_listed_does_not_matter(everybody, count, random):
    shuffled = list(everybody)
    random.shuffle(shuffled)
    assert chosen(everybody, count) == chosen(shuffled, count)


@given(names, st.integers(1, 4))
def test_without_zones_every_node_holds_as_many_replicas_as_it_gives_away(found, count):
    everybody = [Place(name) for name in found]
    load = Counter(node for nodes in chosen(everybody, count).values() for node in nodes)
    assert set(load.values()) == {min(count, len(found) - 1)}


@given(names, st.integers(1, 4), st.data())
def test_without_zones_a_lost_node_changes_only_those_who_had_a_replica_there(found, count, draw):
    everybody = [Place(name) for name in found]
    lost = draw.draw(st.sampled_from(everybody))
    before = chosen(everybody, count)
    after = chosen([place for place in everybody if place != lost], count)
    for node, holders in after.items():
        kept = [one for one in before[node] if one != lost.node]
        assert list(holders[: len(kept)]) == kept


@given(places)
def test_a_replica_is_in_another_zone_when_there_is_one(everybody):
    where = {place.node: place.zone for place in everybody}
    for node, holders in chosen(everybody, 1).items():
        others = {zone for other, zone in where.items() if other != node and zone not in {None, where[node]}}
        if where[node] is not None and others:
            assert where[holders[0]] in others


@given(st.integers(2, 8), st.integers(2, 4), st.integers(1, 2))
def test_zones_of_equal_size_bear_nearly_equal_loads(size, count_of_zones, count):
    everybody = [Place(f"node-{number}", f"zone-{number % count_of_zones}") for number in range(size * count_of_zones)]
    load = Counter(node for nodes in chosen(everybody, count).values() for node in nodes)
    assert max(load.values()) <= count + 1


def test_a_lost_node_moves_few_replicas_in_a_large_cluster_with_zones():
    everybody = [Place(f"node-{number}", f"zone-{number % 3}") for number in range(90)]
    before = chosen(everybody, 1)
    moved = []
    for lost in everybody[:8]:
        after = chosen([place for place in everybody if place != lost], 1)
        moved.append(sum(after[node] != before[node] for node in after))
    assert sum(moved) / len(moved) <= 0.15 * len(everybody), moved


# ------------------------------------------------------------ heirs


@given(names, st.data())
def test_the_writer_looks_after_its_shard_while_it_holds_it(found, draw):
    writer = draw.draw(st.sampled_from(sorted(found)))
    assert heir(writer, found, found) == writer


@given(names, names, st.text("xyz", min_size=1, max_size=3))
def test_of_the_holders_that_live_exactly_one_is_the_heir(holders, alive, writer):
    able = holders & alive
    assert heir(writer, holders, alive) == heir(writer, able, able)
    assert (heir(writer, holders, alive) in able) == bool(able)


def test_nobody_is_the_heir_of_what_nobody_holds():
    assert heir("a", [], ["a", "b"]) is None
