from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.checkpoint.poison import MOST, Failure
from everstep.errors import CheckpointsPoisoned, StateLost, StateMismatch
from everstep.protocol import Source
from everstep.resilience.agreement import Candidate, Card, Sight, agree, do_all_see, newest_seen, nobody_holds


def card(rank: int, step: int, *, holds: bool = True, reduced: bool = False, structure: str = "s", since: int = 2) -> Card:
    return Card(rank, step, holds, reduced, structure, 1000 + rank, since, loss=float(step))


def test_the_first_generation_begins_from_the_initial_weights() -> None:
    agreement = agree((card(0, 0, holds=False), card(1, 0, holds=False)), 1, "start")
    assert agreement.sources == (Source.INITIAL, Source.INITIAL)


def test_the_first_generation_begins_from_the_weights_of_rank_0_where_they_differ() -> None:
    cards = tuple(dataclasses.replace(card(rank, 0, holds=False), initial=digest) for rank, digest in enumerate("aba"))
    agreement = agree(cards, 1, "start")
    assert agreement.sources == (Source.INITIAL, Source.PEER, Source.INITIAL)
    assert agreement.holders == (0, 2)


def test_a_later_generation_without_any_state_is_refused() -> None:
    with pytest.raises(StateLost):
        agree((card(0, 0, holds=False), card(1, 0, holds=False)), 2, "replaced")


def test_a_rank_that_has_been_alone_since_the_first_generation_proves_that_nothing_was_committed() -> None:
    agreement = agree((card(0, 0, holds=False, since=1), card(1, 0, holds=False)), 3, "replaced")
    assert agreement.sources == (Source.INITIAL, Source.INITIAL)


def test_a_rank_one_behind_with_the_gradient_in_hand_rolls_forward() -> None:
    agreement = agree((card(0, 8), card(1, 7, reduced=True), card(2, 0, holds=False)), 4, "replaced")
    assert agreement.step == 8
    assert agreement.sources == (Source.KEPT, Source.ROLLED_FORWARD, Source.PEER)
    assert agreement.holders == (0,)
    assert agreement.loss == 8.0


def test_a_rank_one_behind_without_the_gradient_copies() -> None:
    assert agree((card(0, 8), card(1, 7)), 4, "replaced").sources == (Source.KEPT, Source.PEER)


def test_ranks_that_train_different_things_are_refused() -> None:
    with pytest.raises(StateMismatch):
        agree((card(0, 1), card(1, 1, structure="other")), 2, "replaced")


def nobody(count: int = 2, since: int = 2) -> tuple[Card, ...]:
    return tuple(card(rank, 0, holds=False, since=since) for rank in range(count))


def sight(rank: int, *steps: int, memory: bool = True, failures: tuple[Failure, ...] = (), trouble: str | None = None) -> Sight:
    return Sight(rank, tuple(Candidate(step, "a", memory) for step in steps), failures, trouble)


def test_when_nobody_holds_state_the_newest_checkpoint_that_all_can_see_is_loaded() -> None:
    agreement = agree(nobody(), 5, "replaced", (sight(0, 40, 30, 20), sight(1, 30, 20, memory=False)))
    assert agreement.step == 30
    assert agreement.sources == (Source.MEMORY, Source.STORE)
    assert agreement.checkpoint == Candidate(30, "a", True)
    assert agreement.holders == ()


def test_equal_steps_of_different_saves_are_not_the_same_checkpoint() -> None:
    others = Sight(1, (Candidate(30, "b", True), Candidate(20, "a", True)))
    assert agree(nobody(), 5, "replaced", (sight(0, 30, 20), others)).step == 20


def aged(rank: int, step: int) -> Card:
    return dataclasses.replace(card(rank, step), is_aged=True)


def test_a_checkpoint_outdoes_a_state_that_others_have_trained_without() -> None:
    cards = (aged(0, 5), card(1, 0, holds=False))
    assert nobody_holds(cards)
    agreement = agree(cards, 7, "replaced", (sight(0, 40, 30), sight(1, 30, memory=False)))
    assert (agreement.step, agreement.sources, agreement.holders) == (30, (Source.MEMORY, Source.STORE), ())


@pytest.mark.parametrize(
    "sights", [(sight(0, 5, 4), sight(1, 5, 4)), (sight(0, 40), sight(1, 4)), (sight(0), sight(1, trouble="no answer"))]
)
def test_a_state_that_has_aged_is_gone_on_from_where_no_checkpoint_is_newer(sights: tuple[Sight, ...]) -> None:
    agreement = agree((aged(0, 5), card(1, 0, holds=False)), 7, "replaced", sights)
    assert (agreement.step, agreement.sources, agreement.holders) == (5, (Source.KEPT, Source.PEER), (0,))


def test_a_holder_that_has_not_aged_is_asked_before_any_checkpoint() -> None:
    cards = (aged(0, 5), card(1, 9))
    assert not nobody_holds(cards)
    assert agree(cards, 7, "replaced").sources == (Source.PEER, Source.KEPT)


def test_an_aged_replica_of_a_sharded_model_does_not_hide_a_checkpoint() -> None:
    """The one that is up to date has only one of the two shards."""
    seats = ((0, 5, True), (1, 5, True), (0, 50, False))
    cards = tuple(
        dataclasses.replace(card(rank, step), is_aged=is_aged, wanted=(2, rank % 2), seat=(2, index))
        for rank, (index, step, is_aged) in enumerate(seats)
    )
    assert nobody_holds(cards)
    assert agree(cards, 7, "replaced", tuple(sight(rank, 40) for rank in range(3))).step == 40
    assert agree(cards, 7, "replaced", tuple(sight(rank) for rank in range(3))).step == 5


def test_a_job_that_is_submitted_again_goes_on_from_its_checkpoint() -> None:
    assert agree(nobody(since=1), 1, "start", (sight(0, 30), sight(1, 30))).step == 30


def test_a_living_holder_is_believed_before_any_checkpoint() -> None:
    assert agree((card(0, 8), card(1, 0, holds=False)), 4, "replaced", (sight(0, 30), sight(1, 30))).step == 8


def test_without_a_common_checkpoint_the_state_is_lost_as_before() -> None:
    with pytest.raises(StateLost):
        agree(nobody(), 5, "replaced", (sight(0, 40), sight(1)))


def test_nobody_begins_from_the_initial_weights_while_a_tier_could_not_be_asked() -> None:
    with pytest.raises(StateLost, match="rank 1: the store is away"):
        agree(nobody(since=1), 1, "start", (sight(0), sight(1, trouble="the store is away")))


def test_a_checkpoint_that_one_rank_has_seen_fail_twice_is_passed_over_by_all() -> None:
    failures = tuple(Failure(30, "a", "memory", 33, generation) for generation in (2, 3))
    agreement = agree(nobody(), 5, "retried", (sight(0, 30, 20), sight(1, 30, 20, failures=failures)))
    assert agreement.step == 20
    assert agreement.failures == failures


def test_a_job_whose_checkpoints_all_fail_stops_and_does_not_begin_anew() -> None:
    twice = tuple(Failure(30, "a", "memory", 33, generation) for generation in (2, 3))
    with pytest.raises(CheckpointsPoisoned, match="has been tried"):
        agree(nobody(since=1), 5, "retried", (sight(0, 30, failures=twice), sight(1, 30)))
    often = tuple(Failure(30 - generation, "a", "memory", 33, generation) for generation in range(MOST))
    with pytest.raises(CheckpointsPoisoned, match=f"failed {MOST} times"):
        agree(nobody(), 9, "retried", (sight(0, 10, failures=often), sight(1, 10)))


def test_what_a_rank_sees_survives_its_way_over_the_table() -> None:
    seen = sight(1, 30, 20, failures=(Failure(30, "a", "store", 31, 2),), trouble="slow")
    assert Sight.from_wire(json.loads(json.dumps(seen.to_wire()))) == seen


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.booleans(), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_everybody_reaches_the_newest_step_of_a_holder_or_the_agreement_is_refused(
    standings: list[tuple[int, bool, bool]],
) -> None:
    cards = tuple(card(rank, step, holds=holds, reduced=reduced) for rank, (step, holds, reduced) in enumerate(standings))
    holding = [one.step for one in cards if one.holds_state]
    if not holding:
        with pytest.raises(StateLost):
            agree(cards, 2, "replaced")
        return
    agreement = agree(cards, 2, "replaced")
    assert agreement.step == max(holding)
    for one, source in zip(cards, agreement.sources, strict=True):
        reached = one.step + (source is Source.ROLLED_FORWARD)
        assert source is Source.PEER or (one.holds_state and reached == agreement.step)
    assert all(agreement.sources[rank] is Source.KEPT for rank in agreement.holders)
    assert agreement.holders


def test_who_does_not_see_what_another_sees_is_to_look_again_and_not_for_what_has_failed() -> None:
    failures = tuple(Failure(40, "a", "memory", 41, generation) for generation in (2, 3))
    apart = (sight(0, 40, 30, 20), sight(1, 20, failures=failures))
    assert newest_seen(apart) == Candidate(30, "a", True)
    assert not do_all_see(apart, Candidate(30, "a", True))
    assert do_all_see(apart, Candidate(20, "a", False))
    assert newest_seen((sight(0), sight(1))) is None
