"""This process's place in the job: which generation it has joined, and how it joins the next one.

A join is, in this order, in every member: (1) lay the card on the table and read everybody's; (2) build the group; (3) receive or
publish the state; (4) wait until everybody holds it. A newer generation makes every step of it give way; any error of it is told to the
agent, and then a newer generation is waited for. Nothing here waits without looking.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from everstep.errors import (
    CheckpointMismatch,
    CheckpointsPoisoned,
    CheckpointUnreadable,
    CollectiveFailed,
    EverstepError,
    StateLost,
    StateMismatch,
)
from everstep.local_protocol import ToAgent
from everstep.protocol import Generation, Source
from everstep.testing import faults

from .agreement import FIRST_CAUSE, Agreement, Card, Sight, agree, may_begin, nobody_holds
from .checkpoints import Checkpoints, look_around
from .construction import CONSTRUCTION_TIMEOUT, AcceleratorGroups, Construction
from .fence import Fence
from .peers import PeerWatch
from .place import Place
from .rendezvous import RendezvousClient, RendezvousStore, Superseded
from .settings import Settings
from .state import State
from .transfer import Published, Receiver, TransferServer
from .unwind import Unwind
from .watcher import Watcher

_log = logging.getLogger("everstep.checkpoint")

_MEETING_PATIENCE_S = 600.0
_BROKEN_AGAIN_S = 10.0


@dataclass
class _Phases:
    ends: dict[str, float] = field(default_factory=dict)

    def end(self, name: str) -> None:
        self.ends[name] = time.time()


class Alone:
    """The escape of a world of one: there is nobody to wait for."""

    def is_superseded(self) -> bool:
        return False

    def cut(self) -> None:
        """Nobody is connected."""

    def failed(self, message: str) -> None:
        """The caller sees the error itself."""


class _Escape:
    """How waits of one generation end."""

    def __init__(self, membership: Membership, number: int) -> None:
        self._membership = membership
        self._number = number

    def is_superseded(self) -> bool:
        return self._membership.is_superseded(self._number)

    def cut(self) -> None:
        self._membership.cut(self._number + 1)

    def failed(self, message: str) -> None:
        self._membership.tell_broken(self._number, message)


class Membership:
    """One per process. Everything except ``cut``, ``is_superseded`` and ``tell_broken`` is the training thread's."""

    def __init__(self, settings: Settings, accelerator: AcceleratorGroups | None) -> None:
        self.place = Place()
        self._settings = settings
        self._accelerator = accelerator
        self._fence = Fence()
        self._construction = Construction(settings.address, accelerator)
        self._construction.register()
        self._server: TransferServer | None = None
        self._peers: PeerWatch | None = None
        self._ports: list[int] = []
        self._store: RendezvousStore | None = None
        """Held here, because C++ holds only its own half: a collected Python half makes torch's calls fail."""
        self._broken: int = 0
        self.initial_digest = ""
        """Of the state with which this process would begin a job; set after the rehearsal."""
        self.has_joined = False
        """A generation was joined inside an update: the training function is to be entered without joining again."""
        self._heard_at = 0.0
        self.watcher: Watcher | None = None
        self.checkpoints: Checkpoints | None = None
        """None where there is nowhere to save to; set by ``resilient``."""
        self.install_alone()
        if settings.socket_path is not None:
            self._server = TransferServer(settings.address, self._fence)
            self.watcher = Watcher(settings.socket_path, settings.process, self._on_newer)

    # ------------------------------------------------------------ any thread

    def is_superseded(self, number: int) -> bool:
        watcher = self.watcher
        return watcher is not None and (watcher.is_dismissed or watcher.newest_number > number)

    def cut(self, below: int) -> None:
        """Makes whoever waits in a group of a generation below this one come free."""
        has_peers = (
            self.place.generation > 0
        )  # a spare that still rehearses alone is not to be disturbed by the job's first generation
        if self._fence.cut(below) and has_peers and self._accelerator is not None:
            self._accelerator.abort()

    def tell_broken(self, number: int, message: str) -> None:
        """Tells the agent, once a generation, that a collective failed though no newer generation is known."""
        if self.watcher is None or self._broken >= number or self.is_superseded(number):
            self._broken = max(self._broken, number)
            return
        self._broken = number
        self.watcher.tell(ToAgent.BROKEN, generation=number, message=message[:500], at=time.time())

    def give_up_state(self, why: str) -> None:
        """What this process holds is of no use, and everybody knows it: it goes on from a checkpoint, in a new generation.

        Raises:
            CollectiveFailed: always.
        """
        self.place.holds_state = self.place.is_reduced = False
        self.tell_broken(self.place.generation, why)
        raise CollectiveFailed(why)

    def _tell_closed(self, number: int) -> None:
        """A peer's connections have closed: evidence of its death while nobody waits in a collective.

        No collective has failed here so far: a gradient that is in hand stays so, which ``tell_broken`` would deny.
        """
        if self.watcher is not None and not self.is_superseded(number) and self._broken < number:
            self.watcher.tell(ToAgent.BROKEN, generation=number, message="a peer's connections have closed", at=time.time())

    def _on_newer(self, number: int) -> None:
        """Called by the watcher as soon as it knows: whoever waits for a peer of the old generation comes free."""
        self._heard_at = time.time()
        self.cut(number)

    # ------------------------------------------------------------ the training thread

    @property
    def is_dismissed(self) -> bool:
        return self.watcher is not None and self.watcher.is_dismissed

    @property
    def has_lost_generation(self) -> bool:
        """The generation joined is over, or a collective of it has failed: an error out of user code is a consequence."""
        return self.is_superseded(self.place.generation) or self.has_failed_collective

    @property
    def has_failed_collective(self) -> bool:
        return self._broken >= self.place.generation > 0

    def check_accelerator(self) -> None:
        """A collective that was aborted on a device looks like one that is done, with garbage for a result.

        Raises:
            CollectiveFailed: what was reduced on the device must not be said to be in hand.
        """
        if self._accelerator is not None and (why := self._accelerator.why_broken()):
            self.tell_broken(self.place.generation, why)
            raise CollectiveFailed(why)

    @property
    def job(self) -> str:
        return self._settings.job

    def resume_alone(self) -> None:
        """A run of one rank goes on from its newest checkpoint, if it has any.

        Raises:
            StateLost: a tier could not be asked.
            CheckpointsPoisoned: going on from checkpoints has failed too often.
        """
        place, checkpoints = self.place, self.checkpoints
        place.holds_state = True
        if checkpoints is None:
            return
        cards = (Card(0, 0, holds_state=False, is_reduced=False, structure="", transfer_port=0, alone_since=1),)
        while (agreement := agree(cards, 1, FIRST_CAUSE, (checkpoints.sight(0),))).checkpoint is not None:
            try:
                checkpoints.load(agreement, place)
            except CheckpointUnreadable as error:
                _log.warning("An older checkpoint is looked for: %s", error)
            else:
                checkpoints.joined(0)
                return

    def install_alone(self) -> None:
        """A world of one, in which models are wrapped and rehearsed. Listens on loopback only, connects to nobody."""
        store = dist.HashStore()
        self._construction.install(self._construction.build(store, 0, 1, Alone()), store)

    def join(self, state: State) -> Source | None:
        """Joins the newest generation of which this process is a member, waiting for one. None when dismissed meanwhile."""
        while (generation := self._await_membership()) is not None:
            try:
                return self._join(generation, state)
            except (Unwind, Superseded):
                continue
            except (StateLost, StateMismatch, CheckpointMismatch, CheckpointsPoisoned):
                raise
            except (EverstepError, RuntimeError, OSError) as error:
                self.tell_broken(generation.number, f"{type(error).__name__}: {error}")
        return None

    def _await_membership(self) -> Generation | None:
        watcher = self.watcher
        if watcher is None:
            return None
        while not watcher.is_dismissed:
            newest = watcher.newest
            if newest is not None and newest.number > self.place.generation:
                if newest.rank_of(self._settings.process) is not None:
                    return newest
                self._stand_aside(newest.number)
            if not watcher.wait_newer(self.place.generation, _BROKEN_AGAIN_S) and self._broken == self.place.generation > 0:
                watcher.tell(ToAgent.BROKEN, generation=self._broken, message="still no newer generation", at=time.time())
        return None

    def _stand_aside(self, number: int) -> None:
        """A generation without this process: it is a spare from now on, with a state that ages."""
        self.place.generation = number
        self.place.alone_since = 0

    def _join(self, generation: Generation, state: State) -> Source:
        phases = _Phases({"notified": self._heard_at})
        phases.end("released")
        if self._server is not None:
            self._server.publish(None)  # it is about to change: nobody of the generation before may go on reading it
        rank = self._take_place(generation)
        if self._peers is not None:
            self._peers.stop()
        self._construction.uninstall()
        escape = _Escape(self, generation.number)
        meeting = RendezvousClient(generation, escape.is_superseded, self._fence, _MEETING_PATIENCE_S)
        with contextlib.closing(meeting):
            agreement = self._agree(meeting, generation, state)
            phases.end("agreed")
            self._build(generation, rank, escape, state)
            phases.end("grouped")
            faults.point("transfer")
            source, moved = self._take_state(agreement.sources[rank], agreement, generation, state)
            meeting.request("set", key=f"held/{rank}", value="")
            meeting.request("collect", prefix="held/", count=generation.world_size)
            if self.checkpoints is not None:
                self.checkpoints.joined(rank, generation.cause)
        if self._server is not None:
            self._server.publish(None)
        phases.end("transferred")
        self._tell_reformed(source, moved, phases)
        return source

    def _take_place(self, generation: Generation) -> int:
        rank = generation.rank_of(self._settings.process)
        if rank is None:
            raise Superseded
        place = self.place
        is_next = generation.number == place.generation + 1
        if not place.holds_state and not (place.alone_since and is_next):
            place.alone_since = generation.number
        place.generation, place.rank, place.world_size = generation.number, rank, generation.world_size
        faults.stand(rank, place.step, generation.number)
        return rank

    def _agree(self, meeting: RendezvousClient, generation: Generation, state: State) -> Agreement:
        place = self.place
        faults.point("agree")
        card = Card(
            rank=place.rank,
            step=place.step,
            holds_state=place.holds_state,
            is_reduced=place.is_reduced,
            structure=state.structure(),
            transfer_port=self._server.port if self._server else 0,
            alone_since=place.alone_since,
            initial=self.initial_digest,
            loss=place.last_loss,
        )
        meeting.request("set", key=f"card/{place.rank:06d}", value=card.to_json())
        told = meeting.request("collect", prefix="card/", count=generation.world_size)
        cards = tuple(Card.from_json(told[key]) for key in sorted(told))
        self._ports = [laid.transfer_port for laid in cards]
        sights: tuple[Sight, ...] = ()
        if nobody_holds(cards):
            begun = not may_begin(cards, generation.number, generation.cause)
            sights = look_around(meeting, self.checkpoints, place, generation.world_size, has_begun=begun)
        return agree(cards, generation.number, generation.cause, sights)

    def _build(self, generation: Generation, rank: int, escape: _Escape, state: State) -> None:
        client = RendezvousClient(generation, escape.is_superseded, self._fence, CONSTRUCTION_TIMEOUT.total_seconds())
        self._store = RendezvousStore(client)
        store = dist.PrefixStore(f"g{generation.number}", self._store)
        faults.point("construct")
        with self._fence.around_construction(generation.number):
            group = self._construction.build(store, rank, generation.world_size, escape)
        self._peers = PeerWatch(self._fence.connections(), lambda: self._tell_closed(generation.number))
        self._construction.install(group, store)
        state.regroup(dist.group.WORLD)

    def _take_state(self, source: Source, agreement: Agreement, generation: Generation, state: State) -> tuple[Source, int]:
        place = self.place
        if source in {Source.MEMORY, Source.STORE}:
            return self.load(agreement)
        if source is Source.INITIAL:
            place.holds_state = True
            place.step = place.consumed = 0
            state.release_reserve()
        if source in {Source.INITIAL, Source.KEPT} and Source.PEER in agreement.sources:
            self._publish(generation, state)
        elif source is Source.ROLLED_FORWARD:
            place.last_loss = agreement.loss
        elif source is Source.PEER:
            return source, self._receive(agreement, generation, state)
        return source, 0

    def load(self, agreement: Agreement) -> tuple[Source, int]:
        """The state from a checkpoint; raises CheckpointUnreadable, and then this process holds none."""
        if self.checkpoints is None:
            raise StateLost
        self.place.holds_state = False
        return self.checkpoints.load(agreement, self.place)

    def _publish(self, generation: Generation, state: State) -> None:
        if self._server is None:
            return
        place = self.place
        cursor: dict[str, Any] = {
            "step": place.step,
            "consumed": place.consumed,
            "loss": place.last_loss,
            "recent": place.recent,
            "loaded": self.checkpoints.carried() if self.checkpoints else None,
        }
        tensors = [tensor for _, tensor in state.tensors()]
        state.abandon_step()
        self._server.publish(Published(generation.number, generation.token, state.pack_rest(cursor), tensors))

    def _receive(self, agreement: Agreement, generation: Generation, state: State) -> int:
        holders = [(generation.members[rank].address, self._ports[rank]) for rank in agreement.holders]
        receiver = Receiver(
            holders, generation.number, generation.token, self._fence, lambda: self.is_superseded(generation.number)
        )
        place = self.place
        place.holds_state = False
        state.abandon_step()  # or the buffers of a step that was left would be put back over those that come now
        blob = receiver.rest()
        targets, cursor = state.unpack_rest(blob)
        moved = receiver.tensors(targets)
        place.step, place.consumed, place.last_loss = cursor["step"], cursor["consumed"], cursor["loss"]
        place.recent = cursor["recent"]
        if self.checkpoints is not None:
            self.checkpoints.took_over(cursor["loaded"])
        place.holds_state = True
        return moved + len(blob)

    def _tell_reformed(self, source: Source, moved: int, phases: _Phases) -> None:
        place, watcher = self.place, self.watcher
        if watcher is None:
            return
        watcher.stands_at(place.generation, place.step)
        watcher.withdraw(ToAgent.BROKEN)
        watcher.withdraw(ToAgent.FINISHED)
        watcher.tell(
            ToAgent.REFORMED,
            generation=place.generation,
            rank=place.rank,
            step=place.step,
            source=str(source),
            bytes_moved=moved,
            phases=phases.ends,
        )
        if place.rank == 0:
            for step in place.recent:
                watcher.tell(ToAgent.PROGRESS, **{**step, "generation": place.generation})
