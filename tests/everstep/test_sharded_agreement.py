from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import ShardsDoNotFit, StateLost, StateMismatch
from everstep.protocol import Source
from everstep.resilience.agreement import Card, agree, nobody_holds
from everstep.resilience.shard_agreement import ShardPlan, Standing, plan_shards
from everstep.resilience.sharding import Seat, seat_of


def standing(rank: int, shards: int, step: int, *, reduced: bool = False, replicas: tuple[tuple[int, int], ...] = ()) -> Standing:
    """One that lives in the seat which it keeps; ``replicas`` are (shard, step)."""
    seat = Seat(shards, rank % shards)
    return Standing(rank, seat, step, seat, reduced, tuple((shards, index, at) for index, at in replicas))


def newcomer(rank: int, shards: int) -> Standing:
    return Standing(rank, Seat(shards, rank % shards), 0, None, False)


def planned(*standings: Standing) -> ShardPlan:
    plan = plan_shards(standings)
    assert plan is not None
    return plan


def test_a_dead_shard_comes_from_whoever_keeps_its_replica() -> None:
    plan = planned(standing(0, 3, 7), newcomer(1, 3), standing(2, 3, 7, replicas=((1, 6), (1, 7))))
    assert plan.step == 7
    assert plan.sources == (Source.KEPT, Source.PEER, Source.KEPT)
    assert plan.holders == ((0,), (2,), (2,))


def test_survivors_roll_back_to_the_newest_step_of_which_every_shard_is_left() -> None:
    own = ((0, 6), (0, 7))
    plan = planned(standing(0, 3, 8, replicas=own), newcomer(1, 3), standing(2, 3, 8, replicas=((2, 7), (2, 8), (1, 7))))
    assert plan.step == 7
    assert plan.sources == (Source.PEER, Source.PEER, Source.PEER)
    assert plan.holders == ((0,), (2,), (2,))


def test_a_shard_that_nobody_has_is_not_gone_on_without() -> None:
    assert plan_shards((standing(0, 2, 7), newcomer(1, 2))) is None


def test_another_replica_of_the_model_gives_a_dead_shard_back() -> None:
    plan = planned(standing(0, 2, 5), standing(1, 2, 5), standing(2, 2, 5), newcomer(3, 2))
    assert plan.sources == (Source.KEPT, Source.KEPT, Source.KEPT, Source.PEER)
    assert plan.holders == ((0, 2), (1,))
    assert not plan.late


def test_a_shard_whose_only_holder_is_one_step_behind_is_read_after_that_one_has_rolled_forward() -> None:
    standings = (standing(0, 2, 6), standing(1, 2, 5, reduced=True), standing(2, 2, 6), newcomer(3, 2))
    plan = planned(*standings)
    assert plan.step == 6
    assert plan.sources == (Source.KEPT, Source.ROLLED_FORWARD, Source.KEPT, Source.PEER)
    assert plan.late == {1}
    wanted = tuple(one.wanted for one in standings)
    assert [plan.is_read(rank, wanted) for rank in range(4)] == [False, True, False, False]


def test_nobody_rolls_forward_to_a_step_that_nobody_has_applied() -> None:
    plan = planned(
        standing(0, 2, 5, reduced=True), standing(1, 2, 5, reduced=True), standing(2, 2, 5, reduced=True), newcomer(3, 2)
    )
    assert plan.step == 5
    assert Source.ROLLED_FORWARD not in plan.sources


def test_a_rank_that_is_to_take_another_seat_is_not_waited_for() -> None:
    behind = dataclasses.replace(standing(1, 2, 5, reduced=True, replicas=((1, 5),)), wanted=Seat(2, 0))
    plan = planned(standing(0, 2, 6, replicas=((0, 5),)), behind, newcomer(2, 2), dataclasses.replace(newcomer(3, 2)))
    assert plan.step == 5
    assert not plan.late


def test_another_number_of_shards_is_read_from_all_of_the_old_ones_dead_ones_included() -> None:
    survivors = (standing(0, 3, 7), standing(1, 3, 7, replicas=((2, 7),)))
    two = tuple(dataclasses.replace(one, wanted=Seat(2, one.rank)) for one in survivors)
    plan = planned(*two)
    assert plan.shards == 3
    assert plan.sources == (Source.PEER, Source.PEER)
    assert plan.holders == ((0,), (1,), (1,))
    assert plan.is_read(0, tuple(one.wanted for one in two))


@pytest.mark.parametrize(("rank", "world", "shards", "seat"), [(3, 4, None, (4, 3)), (3, 4, 2, (2, 1)), (5, 6, 2, (2, 1))])
def test_a_rank_holds_the_shard_that_its_number_says(rank: int, world: int, shards: int | None, seat: tuple[int, int]) -> None:
    assert seat_of(rank, world, shards) == Seat(*seat)


def test_ranks_that_are_no_whole_number_of_replicas_are_refused_in_words() -> None:
    with pytest.raises(ShardsDoNotFit, match="3 ranks are not a whole number of replicas of 2 shards"):
        seat_of(0, 3, 2)


def card(rank: int, *, holds: bool, initial: str = "a", replicas: tuple[tuple[int, int, int], ...] = (), since: int = 2) -> Card:
    seat = (2, rank) if holds else None
    return Card(rank, 4, holds, False, "s", 1, since, initial, loss=0.5, wanted=(2, rank), seat=seat, replicas=replicas)


def test_cards_of_sharded_ranks_survive_their_way_over_the_table() -> None:
    one = dataclasses.replace(card(1, holds=True, replicas=((2, 0, 4),)), groups=("own/tensor",), losses=((4, 0.25), (3, None)))
    assert Card.from_wire(json.loads(json.dumps(one.to_wire()))) == one


def test_a_lost_shard_is_lost_state_even_where_others_live() -> None:
    cards = (card(0, holds=True), card(1, holds=False))
    assert nobody_holds(cards)
    with pytest.raises(StateLost):
        agree(cards, 5, "replaced")
    assert agree((card(0, holds=True, replicas=((2, 1, 4),)), card(1, holds=False)), 5, "replaced").loss == 0.5


def test_a_sharded_job_begins_only_from_weights_that_all_ranks_have_alike() -> None:
    assert agree((card(0, holds=False), card(1, holds=False)), 1, "start").sources == (Source.INITIAL, Source.INITIAL)
    with pytest.raises(StateMismatch, match=r"torch\.manual_seed"):
        agree((card(0, holds=False), card(1, holds=False, initial="b")), 1, "start")


@st.composite
def tables(draw: st.DrawFn) -> tuple[Standing, ...]:
    shards, replicas = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    found = []
    for rank in range(shards * replicas):
        wanted = Seat(shards, rank % shards)
        seat = draw(st.sampled_from([None, wanted, Seat(2, rank % 2)]))
        kept = draw(st.lists(st.tuples(st.integers(0, shards - 1), st.integers(3, 5)), max_size=3))
        marks = tuple((shards, index, step) for index, step in kept)
        found.append(Standing(rank, wanted, draw(st.integers(3, 5)), seat, draw(st.booleans()), marks))
    return tuple(found)


@given(tables())
@settings(max_examples=200, deadline=None)
def test_every_shard_of_the_target_has_a_holder_and_no_newer_target_has(standings: tuple[Standing, ...]) -> None:
    def holds(one: Standing, seat: Seat, step: int) -> bool:
        forward = one.wanted == seat and one.can_roll_forward(seat, step)
        return one.has_alive(seat, step) or one.has_replica(seat, step) or forward

    def is_covered(shards: int, step: int) -> bool:
        applied = any(one.step == step and one.seat is not None and one.seat.shards == shards for one in standings)
        applied |= any(mark[0] == shards and mark[2] == step for one in standings for mark in one.replicas)
        return applied and all(any(holds(one, Seat(shards, index), step) for one in standings) for index in range(shards))

    possible = [step for step in range(3, 7) for shards in (1, 2, 3) if is_covered(shards, step)]
    plan = plan_shards(standings)
    if plan is None:
        assert not possible
        return
    assert plan.step == max(possible)
    for index, ranks in enumerate(plan.holders):
        assert ranks
        assert all(holds(standings[rank], Seat(plan.shards, index), plan.step) for rank in ranks)
        assert all(rank not in plan.late or plan.sources[rank] is Source.ROLLED_FORWARD for rank in ranks)
