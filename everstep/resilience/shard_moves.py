"""How a rank comes to its shard in one generation, gives shards to those who lack them, and keeps replicas of them.

1. Slots that are newer than what was agreed on are emptied first. 2. Everything at the agreed step that is here and that others may need is
published: the living shard, and replicas. 3. A rank that needs another seat takes it before it reads; what it had is kept beside, and taken
back if the join fails, until everybody holds state (``settle``). 4. A rank that has to roll forward before its shard can be read publishes
it after its update.
"""

from __future__ import annotations

import dataclasses

import torch

from everstep.errors import StateMismatch, TransferFailed
from everstep.protocol import Source

from .agreement import Agreement, Card
from .checkpoints import Checkpoints
from .fence import Fence
from .groups import waiting_for
from .moves import Joining, Moves
from .place import Place
from .shard_agreement import Mark, ShardPlan
from .shard_pieces import Part, places_of
from .shard_replicas import Copy, Replicator, Slot, buddy_of
from .sharding import WHOLE, Prepared, Seat, Sharding, seat_of
from .state import State
from .transfer import Published, Receiver, TransferServer


class ShardMoves(Moves):
    """Of this process's shard, and of the replicas that it keeps."""

    def __init__(self, place: Place, server: TransferServer | None, fence: Fence, sharding: Sharding) -> None:
        super().__init__(place, server, fence)
        self.sharding = sharding
        self.is_sharded = False
        """Whether the state of this run is."""
        self._before: tuple[Prepared, bool] | None = None
        self._replicator: Replicator | None = None
        self._keeps: set[Seat] = set()
        self._is_first = False
        """The buddy of this generation has nothing yet."""

    # ------------------------------------------------------------ joining

    def begin_join(self, generation: int, token: str) -> None:
        """Nothing reads the living shard any more, and nothing of an older generation is kept from now on."""
        if self._replicator is not None:
            self._replicator.rest()
            self._replicator = None
        if self.server is not None:
            self.server.enter(generation, token)

    def signed(self, card: Card) -> Card:
        """With what this rank holds of shards, and the seat that it is to take."""
        if not self.is_sharded:
            return card
        wanted = seat_of(card.rank, self.place.world_size, self.sharding.shards)
        slots = self.server.slots if self.server is not None else None
        seat = self.sharding.seat if self.place.holds_state else None
        return dataclasses.replace(
            card,
            wanted=(wanted.shards, wanted.index),
            seat=(seat.shards, seat.index) if seat is not None else None,
            replicas=slots.marks() if slots is not None else (),
            losses=slots.losses() if slots is not None else (),
        )

    def heed(self, agreement: Agreement) -> None:
        """Before the groups are built, and therefore before anybody can give a replica away in this generation."""
        if self.is_sharded and self.server is not None:
            self.server.slots.drop_newer(agreement.shards.step if agreement.shards is not None else -1)

    def take(self, joining: Joining) -> tuple[Source, int]:
        if not self.is_sharded:
            return super().take(joining)
        place, plan = self.place, joining.agreement.shards
        wanted = seat_of(place.rank, place.world_size, self.sharding.shards)
        source = joining.agreement.sources[place.rank]
        if plan is None:
            return self._begin(joining, source, wanted)
        if source is Source.ROLLED_FORWARD:
            place.last_loss = joining.agreement.loss
        elif self._is_read(joining, plan):
            self._publish_parts(joining, plan.step)
        if source is Source.PEER:
            return source, self._come_to(joining, plan, wanted)
        return source, 0

    def settle(self, joining: Joining) -> None:
        """Everybody holds state: what this rank had before is of no use to anybody, and replicas are made of what it has now."""
        self.place.is_aged = False
        self._before = None
        if self.is_sharded and self._replicator is None:
            self.keep_replicas(joining)
            if joining.agreement.sources[self.place.rank] is not Source.ROLLED_FORWARD:  # that one is about to change its state
                self.replicate(joining.state, joining.checkpoints)

    def undo(self, state: State) -> None:
        """The join has failed: the seat of before, if it was left, with the state that it had."""
        if self._before is not None:
            before, held = self._before
            self._before = None
            self.sharding.adopt(state.model, state.optimizer, before)
            state.reseated()
            self.place.holds_state = held

    def is_late(self, joining: Joining) -> bool:
        """Whether others wait until this rank has rolled forward."""
        plan = joining.agreement.shards
        is_forward = joining.agreement.sources[self.place.rank] is Source.ROLLED_FORWARD
        return plan is not None and is_forward and self._is_read(joining, plan)

    def publish_late(self, joining: Joining) -> None:
        self._publish_parts(joining, self.place.step)

    # ------------------------------------------------------------ replicas

    def redundancy(self) -> dict[str, int]:
        """As the agent is told it: how many copies of each part of the state live in the ranks of this generation, and how many steps the loss of one process costs at most."""
        size = self.place.world_size
        replicas = size // seat_of(self.place.rank, size, self.sharding.shards).shards if self.is_sharded else size
        if replicas > 1 or size == 1:
            return {"copies": replicas, "worst_loss": 0}
        return {"copies": 2, "worst_loss": self.sharding.every}

    def keep_replicas(self, joining: Joining) -> None:
        """From now on each committed step of this generation is copied to the buddy, where no other replica of the model is."""
        generation, server = joining.generation, self.server
        seats = [seat_of(rank, generation.world_size, self.sharding.shards) for rank in range(generation.world_size)]
        self._keeps = set()
        buddy = buddy_of(self.place.rank, generation.members)
        if not self.is_sharded or seats[0].shards != generation.world_size or buddy is None or server is None:
            return
        self._keeps = {seats[self.place.rank]} | {
            seats[rank] for rank in range(generation.world_size) if buddy_of(rank, generation.members) == self.place.rank
        }

        def send(copy: Copy, slot: Slot) -> None:
            mark = (copy.seat.shards, copy.seat.index, copy.step)
            receiver = Receiver(
                joining.addresses((buddy,)), generation.number, generation.token, self.fence, joining.is_superseded, mark
            )
            receiver.keep(copy, slot)

        self._is_first = True
        self._replicator = Replicator(server.slots, send, self.sharding.every, generation.number, joining.is_superseded)

    def replicate(self, state: State, checkpoints: Checkpoints | None) -> None:
        """A step is committed, or a generation begins: the copy of the shard begins, if one is due."""
        place, replicator = self.place, self._replicator
        if replicator is None or not (self._is_first or replicator.is_due(place.step)):
            return
        self._is_first = False
        part = self._living(state, checkpoints)
        fleeting = state.fleeting()
        tensors = [tensor.detach().clone() if id(tensor) in fleeting else tensor for tensor in part.tensors]
        replicator.begin(Copy(self.sharding.seat, place.step, part.rest, tensors, part.lengths, place.last_loss))

    def await_replica(self) -> None:
        """Before the vote. Raises CollectiveFailed."""
        if self._replicator is not None:
            with waiting_for("the keeper of this shard's replica"):
                self._replicator.settle()

    def forget_all(self) -> None:
        """What there is of the state is of no use, here as everywhere."""
        if self.server is not None:
            self.server.slots.drop_newer(-1)

    def forget_others(self) -> None:
        """Everybody has voted, so everybody's shard is where it belongs: other replicas are of older divisions."""
        if self.is_sharded and self.server is not None:
            self.server.slots.keep_only(self._keeps)

    # ------------------------------------------------------------ inside

    def _begin(self, joining: Joining, source: Source, wanted: Seat) -> tuple[Source, int]:
        """From the initial state, which everybody has whole, or from a checkpoint."""
        if source is not Source.INITIAL:
            self.place.holds_state = False
            self._sit_down(joining.state, wanted)
            return self.load(joining)
        place = self.place
        if self.sharding.seat not in {WHOLE, wanted}:
            message = "this process has given its whole initial state up, and cannot begin in another seat"
            raise StateMismatch(message)
        self._sit_down(joining.state, wanted)
        place.holds_state = True
        place.step = place.consumed = 0
        joining.state.release_reserve()
        self.keep_replicas(joining)
        self.replicate(joining.state, joining.checkpoints)
        self.await_replica()
        return source, 0

    def _sit_down(self, state: State, wanted: Seat) -> None:
        if self.sharding.seat == wanted:
            return
        self._before = (self.sharding.current(state.model, state.optimizer), self.place.holds_state)
        self.sharding.adopt(state.model, state.optimizer, self.sharding.prepare(state.model, state.optimizer, wanted))
        state.reseated()

    def _is_read(self, joining: Joining, plan: ShardPlan) -> bool:
        wanted = tuple(
            seat_of(rank, joining.generation.world_size, self.sharding.shards) for rank in range(joining.generation.world_size)
        )
        return plan.is_read(self.place.rank, wanted)

    def _publish_parts(self, joining: Joining, step: int) -> None:
        if self.server is None:
            return
        generation, place, seat = joining.generation, self.place, self.sharding.seat
        parts: dict[Mark, Part] = {}
        for mark in self.server.slots.marks():
            slot = self.server.slots.find(Seat(*mark[:2]), mark[2])
            if mark[2] == step and slot is not None:
                parts[mark] = Part(slot.rest, slot.tensors(), slot.lengths)
        if place.holds_state and place.step == step:
            joining.state.abandon_step()
            parts[seat.shards, seat.index, step] = self._living(joining.state, joining.checkpoints)
        self.server.publish(Published(generation.number, generation.token, b"", [], parts))

    def _living(self, state: State, checkpoints: Checkpoints | None) -> Part:
        named = state.whole_tensors()
        rest = state.pack_rest(self.cursor(checkpoints))
        return Part(rest, [tensor for _, tensor in state.tensors()], self.sharding.lengths([one for _, one in named]))

    def _come_to(self, joining: Joining, plan: ShardPlan, wanted: Seat) -> int:
        state, place = joining.state, self.place
        state.abandon_step()
        was_here = place.holds_state and place.step == plan.step
        self._sit_down(state, wanted)
        if not was_here:
            self._before = None  # what was left is of no use to anybody
        place.holds_state = False
        if plan.shards != wanted.shards:
            return self._read_rows(joining, plan, wanted)
        own = self.server.slots.find(wanted, plan.step) if self.server is not None else None
        if own is not None:
            return self._restore(joining, own)
        holders = joining.addresses(plan.holders[wanted.index])
        receiver = self._receiver(joining, holders, (wanted.shards, wanted.index, plan.step))
        blob = receiver.rest()
        targets, cursor = state.unpack_rest(blob)
        moved = receiver.tensors(targets)
        self.stand_at(cursor, joining.checkpoints)
        return moved + len(blob)

    def _restore(self, joining: Joining, slot: Slot) -> int:
        """From the replica that this process has itself. No byte goes over the network."""
        targets, cursor = joining.state.unpack_rest(slot.rest)
        if [target.nbytes for target in targets] != list(slot.sizes):
            message = "the replica in this process is of other tensors than the state"
            raise TransferFailed(message)
        with torch.no_grad():
            for target, kept in zip(targets, slot.tensors(), strict=True):
                target.detach().copy_(kept.view(target.dtype).view(target.shape))
        self.stand_at(cursor, joining.checkpoints)
        return 0

    def _read_rows(self, joining: Joining, plan: ShardPlan, wanted: Seat) -> int:
        """Another division: rows of all old shards, from whoever has them, dead ones' replicas included."""
        state, moved = joining.state, 0
        first = self._receiver(joining, joining.addresses(plan.holders[0]), (plan.shards, 0, plan.step))
        blob = first.rest()
        targets, cursor = state.unpack_rest(blob)
        lengths = self.sharding.lengths([one for _, one in state.whole_tensors()])
        for index, holders in enumerate(plan.holders):
            places, pieces = places_of(targets, lengths, Seat(plan.shards, index), wanted)
            if places:
                receiver = self._receiver(joining, joining.addresses(holders), (plan.shards, index, plan.step))
                moved += receiver.rows(places, wanted, pieces)
        self.stand_at(cursor, joining.checkpoints)
        return moved + len(blob)

    def _receiver(self, joining: Joining, holders: list[tuple[str, int]], mark: Mark) -> Receiver:
        generation = joining.generation
        return Receiver(holders, generation.number, generation.token, self.fence, joining.is_superseded, mark)
