"""How a rank comes to its state in one generation, and gives it to those who lack it. Sharded states: ``shard_moves``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep.errors import CheckpointUnreadable, StateLost
from everstep.protocol import Generation, Source

from .agreement import FIRST_CAUSE, Agreement, Card, agree
from .anomaly import Losses
from .checkpoints import Checkpoints
from .fence import Fence
from .place import Place
from .rendezvous import RendezvousClient
from .state import State
from .transfer import Published, Receiver, TransferServer

_log = logging.getLogger("everstep.checkpoint")


@dataclass(frozen=True)
class Joining:
    """One join under way. ``ports`` are those of the ranks' transfer servers."""

    generation: Generation
    agreement: Agreement
    state: State
    ports: list[int]
    checkpoints: Checkpoints | None
    is_superseded: Callable[[], bool]

    def addresses(self, ranks: tuple[int, ...]) -> list[tuple[str, int]]:
        return [(self.generation.members[rank].address, self.ports[rank]) for rank in ranks]


@dataclass
class Phases:
    """When which part of a join ended, in Unix seconds."""

    ends: dict[str, float] = field(default_factory=dict)

    def end(self, name: str) -> None:
        self.ends[name] = time.time()


@dataclass
class Meeting:
    """A join that has been agreed on, and is not over before everybody holds the state."""

    client: RendezvousClient
    joining: Joining
    phases: Phases
    source: Source = Source.KEPT
    moved: int = 0


class Moves:
    """Of this process's state, which is whole."""

    def __init__(self, place: Place, server: TransferServer | None, fence: Fence) -> None:
        self.place = place
        self.server = server
        self.fence = fence

    def take(self, joining: Joining) -> tuple[Source, int]:
        """Comes to the state that was agreed on. Returns where from, and how many bytes were moved."""
        place, agreement, state = self.place, joining.agreement, joining.state
        source = agreement.sources[place.rank]
        if source in {Source.MEMORY, Source.STORE}:
            return self.load(joining)
        if source is Source.INITIAL:
            place.holds_state = True
            place.step = place.consumed = 0
            state.release_reserve()
        if source in {Source.INITIAL, Source.KEPT} and Source.PEER in agreement.sources:
            self._publish(joining)
        elif source is Source.ROLLED_FORWARD:
            place.last_loss = agreement.loss
        elif source is Source.PEER:
            return source, self._receive(joining)
        return source, 0

    def load(self, joining: Joining) -> tuple[Source, int]:
        """The state from a checkpoint; raises CheckpointUnreadable, and then this process holds none."""
        if joining.checkpoints is None:
            raise StateLost
        self.place.holds_state = False
        return joining.checkpoints.load(joining.agreement, self.place)

    def cursor(self, checkpoints: Checkpoints | None) -> dict[str, Any]:
        """What of the place goes with the state."""
        place = self.place
        return {
            "step": place.step,
            "consumed": place.consumed,
            "loss": place.last_loss,
            "recent": place.recent,
            "position": place.position,
            "losses": place.losses.to_wire(),
            "loaded": checkpoints.carried() if checkpoints else None,
        }

    def stand_at(self, cursor: dict[str, Any], checkpoints: Checkpoints | None) -> None:
        place = self.place
        place.step, place.consumed, place.last_loss = cursor["step"], cursor["consumed"], cursor["loss"]
        place.recent, place.position = cursor["recent"], cursor["position"]
        place.losses = Losses.from_wire(cursor["losses"])
        if checkpoints is not None:
            checkpoints.took_over(cursor["loaded"])
        place.holds_state = True

    def _publish(self, joining: Joining) -> None:
        if self.server is None:
            return
        state, generation = joining.state, joining.generation
        tensors = [tensor for _, tensor in state.tensors()]
        state.abandon_step()
        rest = state.pack_rest(self.cursor(joining.checkpoints))
        self.server.publish(Published(generation.number, generation.token, rest, tensors))

    def _receive(self, joining: Joining) -> int:
        generation, state = joining.generation, joining.state
        holders = joining.addresses(joining.agreement.holders)
        receiver = Receiver(holders, generation.number, generation.token, self.fence, joining.is_superseded)
        self.place.holds_state = False
        state.abandon_step()  # or the buffers of a step that was left would be put back over those that come now
        blob = receiver.rest()
        targets, cursor = state.unpack_rest(blob)
        moved = receiver.tensors(targets)
        self.stand_at(cursor, joining.checkpoints)
        return moved + len(blob)


def resume_alone(place: Place, checkpoints: Checkpoints | None) -> None:
    """A run of one rank goes on from its newest checkpoint, if it has any.

    Raises:
        StateLost: a tier could not be asked.
        CheckpointsPoisoned: going on from checkpoints has failed too often.
    """
    place.holds_state = True
    if checkpoints is None:
        return
    checkpoints.not_after = place.losses.not_after
    cards = (Card(0, 0, holds_state=False, is_reduced=False, structure="", transfer_port=0, alone_since=1),)
    while (agreement := agree(cards, 1, FIRST_CAUSE, (checkpoints.sight(0),))).checkpoint is not None:
        try:
            checkpoints.load(agreement, place)
        except CheckpointUnreadable as error:
            _log.warning("An older checkpoint is looked for: %s", error)
        else:
            checkpoints.joined(0)
            return
