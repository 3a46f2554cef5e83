"""Who holds what, and what each rank therefore does. Pure: every rank decides alike from the same cards.

The vote comes after the reduction, so "somebody applied step s" implies "every survivor holds the reduced gradient of s". Hence the
target is the newest step of any holder; a holder one step behind with the gradient in hand applies it and no bytes move; everybody else
who is behind copies the state of a holder at the target.

When nobody holds state any more, each rank says which complete checkpoints it can see, and the newest that all of them see is the target.
A state that has aged, because others trained without its holder, counts only where no such checkpoint is newer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoint import poison
from everstep.checkpoint.poison import Failure
from everstep.errors import CheckpointsPoisoned, StateLost, StateMismatch
from everstep.protocol import Source

from .shard_agreement import Mark, ShardPlan, Standing, plan_shards
from .sharding import Seat

FIRST_CAUSE = "start"
"""The cause of a generation that may begin from the initial weights: the control plane knows that none ever trained."""


@dataclass(frozen=True)
class Card:
    """What a rank lays on the table.

    ``alone_since`` is the first of an unbroken row of generations that it saw and was a member of without ever holding state; in those
    no step can have been committed, because that takes its vote. ``initial`` is the digest of the state with which it would begin.
    ``is_aged`` says that others have trained without it since. ``groups`` are the user's own groups that it knows. Of a sharded state: ``wanted`` is the seat that this rank is to take, ``seat`` the one
    that its state is of, ``replicas`` the copies of shards that it keeps, with ``losses`` by step.
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
    groups: tuple[str, ...] = ()
    wanted: tuple[int, int] | None = None
    seat: tuple[int, int] | None = None
    replicas: tuple[Mark, ...] = ()
    losses: tuple[tuple[int, float | None], ...] = ()
    is_aged: bool = False
    anomalies: dict[str, Any] = field(default_factory=dict)
    """What was done about losses, for those who have come late."""
    vote_port: int = 0

    def to_wire(self) -> dict[str, Any]:
        """A JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Card:
        told = dict(wire)
        for name in ("groups", "replicas", "losses"):
            told[name] = tuple(tuple(one) if isinstance(one, list) else one for one in wire[name]) if wire[name] else ()
        for name in ("wanted", "seat"):
            told[name] = tuple(wire[name]) if wire[name] else None
        return cls(**told)

    def standing(self) -> Standing:
        """Of a sharded state."""
        seat = Seat(*self.seat) if self.seat else None
        return Standing(self.rank, Seat(*self.wanted or (1, 0)), self.step, seat, self.is_reduced, self.replicas)


@dataclass(frozen=True)
class Candidate:
    """A complete checkpoint, as one rank sees it."""

    step: int
    save: str
    is_in_memory: bool


@dataclass(frozen=True)
class Sight:
    """What a rank sees of checkpoints, newest first. ``failures`` are those that it has lived through; ``trouble`` says what it could not ask."""

    rank: int
    candidates: tuple[Candidate, ...] = ()
    failures: tuple[Failure, ...] = ()
    trouble: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """A JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Sight:
        candidates = tuple(Candidate(**one) for one in wire["candidates"])
        return cls(wire["rank"], candidates, tuple(Failure(**one) for one in wire["failures"]), wire["trouble"])


@dataclass(frozen=True)
class Agreement:
    """``sources[rank]`` says where that rank finds its state; ``holders`` are the ranks whose state may be read.

    ``checkpoint`` is what everybody loads when nobody holds state; ``failures`` is what all ranks know of checkpoints that were of no use.
    """

    step: int
    sources: tuple[Source, ...]
    holders: tuple[int, ...]
    loss: float | None
    checkpoint: Candidate | None = None
    failures: tuple[Failure, ...] = ()
    shards: ShardPlan | None = None
    """Who holds which shard, where the state is sharded and somebody holds each of them."""


def may_begin(cards: tuple[Card, ...], generation: int, cause: str) -> bool:
    """Whether it is certain that no step was ever committed."""
    return generation == 1 or cause == FIRST_CAUSE or any(card.alone_since == 1 for card in cards)


def nobody_holds(cards: tuple[Card, ...]) -> bool:
    """No state, or not all of a sharded one, that is certain to be the newest: checkpoints have to be looked at."""
    fresh = (dataclasses.replace(card, holds_state=False, seat=None) if card.is_aged else card for card in cards)
    return _newest_held(tuple(fresh)) is None


def _newest_held(cards: tuple[Card, ...]) -> int | None:
    """The newest step of which everything is held by those who are there."""
    if cards[0].wanted is not None:
        plan = plan_shards(tuple(card.standing() for card in cards))
        return None if plan is None else plan.step
    return max((card.step for card in cards if card.holds_state), default=None)


def newest_seen(sights: tuple[Sight, ...]) -> Candidate | None:
    """The newest checkpoint that anybody sees and that is not known to be of no use."""
    failures = [failure for sight in sights for failure in sight.failures]
    seen = {(one.step, one.save): one for sight in sights for one in sight.candidates}
    usable = [key for key in seen if not poison.is_poisoned(failures, *key)]
    return seen[max(usable)] if usable else None


def do_all_see(sights: tuple[Sight, ...], checkpoint: Candidate) -> bool:
    key = (checkpoint.step, checkpoint.save)
    return all(key in {(one.step, one.save) for one in sight.candidates} for sight in sights)


def agree(cards: tuple[Card, ...], generation: int, cause: str, sights: tuple[Sight, ...] = ()) -> Agreement:
    """``sights``, in order of rank, are asked for only when ``nobody_holds`` says so.

    Raises:
        StateMismatch: the ranks do not train the same thing.
        StateLost: nobody holds state, and there is no checkpoint that every rank can read.
        CheckpointsPoisoned: going on from checkpoints has failed too often.
    """
    if len({card.structure for card in cards}) > 1:
        raise StateMismatch
    if nobody_holds(cards):
        saved, aged = _from_checkpoint(sights), _newest_held(cards)
        if aged is None or (saved is not None and saved.step > aged):
            return saved or _begin_or_refuse(cards, generation, cause, sights)
    if cards[0].wanted is not None:
        return _from_shards(cards)
    holding = [card for card in cards if card.holds_state]
    target = max(card.step for card in holding)
    newest = [card for card in holding if card.step == target]
    sources = tuple(_source(card, target) for card in cards)
    return Agreement(target, sources, tuple(card.rank for card in newest), newest[0].loss)


def common_groups(cards: tuple[Card, ...]) -> set[str]:
    """The groups that all ranks know, and can therefore build."""
    return set.intersection(*(set(card.groups) for card in cards))


def _from_shards(cards: tuple[Card, ...]) -> Agreement:
    plan = plan_shards(tuple(card.standing() for card in cards))
    if plan is None:
        raise StateLost
    losses = [card.loss for card in cards if card.seat and card.step == plan.step]
    losses += [loss for card in cards for step, loss in card.losses if step == plan.step]
    return Agreement(plan.step, plan.sources, (), losses[0] if losses else None, shards=plan)


def _from_checkpoint(sights: tuple[Sight, ...]) -> Agreement | None:
    failures = tuple(sorted({failure for sight in sights for failure in sight.failures}))
    if words := poison.diagnosis(failures):
        raise CheckpointsPoisoned(words)
    seen_by = [{(one.step, one.save): one for one in sight.candidates} for sight in sights]
    common = set.intersection(*(set(seen) for seen in seen_by)) if seen_by else set()
    usable = [key for key in common if not poison.is_poisoned(failures, *key)]
    if not usable:
        return None
    chosen = max(usable)
    sources = tuple(Source.MEMORY if seen[chosen].is_in_memory else Source.STORE for seen in seen_by)
    return Agreement(chosen[0], sources, (), None, seen_by[0][chosen], failures)


def _begin_or_refuse(cards: tuple[Card, ...], generation: int, cause: str, sights: tuple[Sight, ...]) -> Agreement:
    if troubles := [f"rank {sight.rank}: {sight.trouble}" for sight in sights if sight.trouble]:
        message = (
            f"{StateLost.__doc__} But there are checkpoints, or it could not be asked whether there are ({'; '.join(troubles)})."
        )
        raise StateLost(message)
    if any(sight.failures for sight in sights):
        message = "Every checkpoint that all ranks can read has been tried, and the loss turned NaN soon after each load."
        raise CheckpointsPoisoned(message)
    if may_begin(cards, generation, cause):
        return _begin(cards)
    raise StateLost


def _begin(cards: tuple[Card, ...]) -> Agreement:
    """From the initial state of rank 0: DDP was built in worlds of one, so nothing has made the ranks' initial weights equal yet."""
    if cards[0].wanted is not None:
        if len({card.initial for card in cards}) > 1:
            message = (
                "a sharded model begins from weights that all ranks have made alike: call torch.manual_seed(...) before building it"
            )
            raise StateMismatch(message)
        return Agreement(0, tuple(Source.INITIAL for _ in cards), (), None)
    like_first = tuple(card.rank for card in cards if card.initial == cards[0].initial)
    sources = tuple(Source.INITIAL if card.rank in like_first else Source.PEER for card in cards)
    return Agreement(0, sources, like_first, None)


def _source(card: Card, target: int) -> Source:
    if card.holds_state and card.step == target:
        return Source.KEPT
    if card.holds_state and card.is_reduced and card.step == target - 1:
        return Source.ROLLED_FORWARD
    return Source.PEER
