from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from workers.plans.brake import End, HoldSeen, LetGo, Limits, Remind, TroubleSeen, brake, plan

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
LIMITS = Limits()


def test_one_node_alone_is_never_held_back():
    assert brake(TroubleSeen(target=1, places=1, all_suspects=1, all_serving=1), LIMITS, NOW).why is None


def test_more_than_the_share_of_a_group_is_held_back_and_told_once():
    assert brake(TroubleSeen(target=10, places=3), LIMITS, NOW).why is None
    assert brake(TroubleSeen(target=10, places=4), LIMITS, NOW).is_new
    assert not brake(TroubleSeen(target=10, places=4, held_since=NOW), LIMITS, NOW).is_new


def test_a_control_plane_that_hears_little_suspects_itself_however_small_the_groups_are():
    assert "suspects itself" in str(brake(TroubleSeen(target=1, places=1, all_suspects=6, all_serving=10), LIMITS, NOW).why)


def test_somebodys_word_holds_for_its_time():
    seen = TroubleSeen(target=4, places=4, resumed_until=NOW + timedelta(minutes=1))
    assert brake(seen, LIMITS, NOW).why is None
    assert brake(seen, LIMITS, NOW + timedelta(minutes=2)).why is not None


def test_a_hold_that_lasts_lets_one_node_through_at_a_time():
    old = NOW - LIMITS.patience
    assert brake(TroubleSeen(target=4, places=4, held_since=old), LIMITS, NOW).why is None
    assert brake(TroubleSeen(target=4, places=4, held_since=old, healing=1), LIMITS, NOW).why is not None


def test_a_hold_ends_when_there_is_less_trouble_and_is_told_again_while_it_lasts():
    assert [type(one) for one in plan(HoldSeen(TroubleSeen(4, places=1, held_since=NOW), NOW, LIMITS), NOW).actions] == [End, LetGo]
    lasting = HoldSeen(TroubleSeen(4, places=4, held_since=NOW), NOW, LIMITS)
    assert plan(lasting, NOW).actions == ()
    assert [type(one) for one in plan(lasting, NOW + LIMITS.remind).actions] == [Remind]


@given(st.integers(1, 100), st.integers(0, 100))
def test_the_brake_is_a_threshold(target: int, places: int):
    held = brake(TroubleSeen(target, places=places), LIMITS, NOW).why is not None
    assert held is (places >= 2 and places > 0.3 * target)
