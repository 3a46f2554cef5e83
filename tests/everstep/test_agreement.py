from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import StateLost, StateMismatch
from everstep.protocol import Source
from everstep.resilience.agreement import Card, agree


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
