"""Who holds what, and what each rank therefore does. Pure: every rank decides alike from the same cards.

The vote comes after the reduction, so "somebody applied step s" implies "every survivor holds the reduced gradient of s". Hence the
target is the newest step of any holder; a holder one step behind with the gradient in hand applies it and no bytes move; everybody else
who is behind copies the state of a holder at the target.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from everstep.errors import StateLost, StateMismatch
from everstep.protocol import Source

FIRST_CAUSE = "start"
"""The cause of a generation that may begin from the initial weights: the control plane knows that none ever trained."""


@dataclass(frozen=True)
class Card:
    """What a rank lays on the table.

    ``alone_since`` is the first of an unbroken row of generations that it saw and was a member of without ever holding state; in those
    no step can have been committed, because that takes its vote. ``initial`` is the digest of the state with which it would begin.
    """

    rank: int
    step: int
    holds_state: bool
    is_reduced: bool
    structure: str
    transfer_port: int
    alone_since: int
    initial: str = ""
    loss: float | None = None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Card:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Agreement:
    """``sources[rank]`` says where that rank finds its state; ``holders`` are the ranks whose state may be read."""

    step: int
    sources: tuple[Source, ...]
    holders: tuple[int, ...]
    loss: float | None


def agree(cards: tuple[Card, ...], generation: int, cause: str) -> Agreement:
    """Raises StateLost, or StateMismatch when the ranks do not train the same thing."""
    if len({card.structure for card in cards}) > 1:
        raise StateMismatch
    holding = [card for card in cards if card.holds_state]
    if not holding:
        is_first = generation == 1 or cause == FIRST_CAUSE or any(card.alone_since == 1 for card in cards)
        if not is_first:
            raise StateLost
        return _begin(cards)
    target = max(card.step for card in holding)
    newest = [card for card in holding if card.step == target]
    sources = tuple(_source(card, target) for card in cards)
    return Agreement(target, sources, tuple(card.rank for card in newest), newest[0].loss)


def _begin(cards: tuple[Card, ...]) -> Agreement:
    """From the initial state of rank 0: DDP was built in worlds of one, so nothing has made the ranks' initial weights equal yet."""
    like_first = tuple(card.rank for card in cards if card.initial == cards[0].initial)
    sources = tuple(Source.INITIAL if card.rank in like_first else Source.PEER for card in cards)
    return Agreement(0, sources, like_first, None)


def _source(card: Card, target: int) -> Source:
    if card.holds_state and card.step == target:
        return Source.KEPT
    if card.holds_state and card.is_reduced and card.step == target - 1:
        return Source.ROLLED_FORWARD
    return Source.PEER
