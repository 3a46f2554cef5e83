"""What goes and what stays, as pure decisions; report R-17 as a property."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.memory_tier.retention import PENDING_S, Kept, for_a_smaller_cap, to_retire, under_pressure
from everstep.shards import Seal, ShardKind


def seal(step, *, index=0, save="s", at=None, namespace="ns"):
    return Seal(
        namespace, index, step, ShardKind.DATA, 1, "0" * 32, f"{namespace}{step}{index}{save}", step if at is None else at, save
    )


def steps(seals):
    return [one.step for one in seals]


def test_the_newest_complete_steps_stay_and_older_ones_go():
    held = [seal(step) for step in (10, 20, 30, 40)]
    assert steps(to_retire(held, Kept(2, 40))) == [10, 20]


def test_a_step_that_is_still_being_saved_takes_no_place_of_a_complete_one():
    held = [seal(step) for step in (10, 20, 30)]
    assert steps(to_retire(held, Kept(1, 20))) == [10]


def test_nothing_goes_while_no_complete_step_is_known():
    assert to_retire([seal(10), seal(20)], Kept(1, None)) == ()


def test_steps_that_never_became_complete_take_no_place_of_complete_ones():
    held = [seal(step) for step in (10, 20, 30)]
    assert steps(to_retire(held, Kept(2, 30, saves={10: "s", 30: "s"}))) == [20]


def test_pinned_steps_stay_beyond_the_number():
    held = [seal(step) for step in (10, 20, 30)]
    assert steps(to_retire(held, Kept(1, 30, pinned=frozenset({10})))) == [20]


def test_a_node_that_holds_nothing_of_the_newest_complete_step_lets_older_ones_go():
    assert steps(to_retire([seal(10), seal(20)], Kept(1, 30))) == [10, 20]


def test_clients_that_went_back_are_followed_by_time():
    held = [seal(100, at=1), seal(110, at=2), seal(120, at=3), seal(105, at=4)]
    assert steps(to_retire(held, Kept(2, 105, is_by_time=True))) == [100, 110]


def test_the_save_that_a_complete_younger_one_supersedes_goes():
    held = [seal(10, save="a", at=1), seal(10, save="b", at=2)]
    assert [one.save for one in to_retire(held, Kept(3, 10, saves={10: "b"}))] == ["a"]
    assert [one.save for one in to_retire(held, Kept(3, 10, saves={10: "a"}))] == []


def test_under_pressure_the_oldest_goes_first_and_pinned_ones_after_the_others():
    held = [seal(step) for step in (10, 20, 30, 40)]
    kept = Kept(4, 40, pinned=frozenset({10}))
    assert [steps(step) for step in under_pressure(held, kept, now=41)] == [[20], [30], [10]]


def test_a_step_that_others_are_still_saving_does_not_give_way_until_it_is_stale():
    held = [seal(10), seal(20)]
    assert under_pressure(held, Kept(1, 10), now=20 + PENDING_S) == ()
    assert [steps(step) for step in under_pressure(held, Kept(1, 10), now=21 + PENDING_S)] == [[20]]


def test_under_pressure_nothing_goes_while_no_complete_step_is_known():
    assert under_pressure([seal(10)], Kept(1, None), now=1e9) == ()
    assert under_pressure([seal(10)], None, now=1e9) == ()


def test_a_smaller_cap_takes_the_newest_complete_steps_last():
    held = [seal(10), seal(20), seal(5, namespace="other"), seal(30)]
    order = for_a_smaller_cap(held, {"ns": Kept(1, 10), "other": Kept(1, None)})
    assert steps(order) == [5, 20, 30, 10]


SEALS = st.lists(
    st.builds(
        seal,
        st.integers(0, 8),
        index=st.integers(0, 2),
        save=st.sampled_from("ab"),
        at=st.floats(0, 1000),
    ),
    max_size=20,
)


@given(SEALS, st.integers(1, 4), st.integers(0, 8), st.booleans(), st.frozensets(st.integers(0, 8)))
def test_the_newest_complete_step_always_stays(held, keep, newest, is_by_time, pinned):
    kept = Kept(keep, newest, pinned, is_by_time=is_by_time)
    assert newest not in steps(to_retire(held, kept))
    assert all(newest not in steps(step) for step in under_pressure(held, kept, now=1e6))
    assert not pinned & set(steps(to_retire(held, kept)))


@given(SEALS, st.integers(1, 4))
def test_the_complete_save_of_the_newest_complete_step_always_stays(held, keep):
    kept = Kept(keep, 4, saves={4: "a"})
    gone = to_retire(held, kept)
    assert [one for one in gone if one.step == 4 and one.save == "a"] == []
    assert len(gone) == len(set(map(id, gone)))
