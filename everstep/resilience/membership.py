"""This process's place in the job: which generation it has joined, and how it joins the next one.

A join is, in this order, in every member: (1) lay the card on the table and read everybody's; (2) build the group; (3) receive or
publish the state; (4) wait until everybody holds it. A newer generation makes every step of it give way; any error of it is told to the
agent, and then a newer generation is waited for. Nothing here waits without looking.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from everstep.errors import (
    CheckpointMismatch,
    CheckpointsPoisoned,
    CollectiveFailed,
    EverstepError,
    ShardsDoNotFit,
    StateLost,
    StateMismatch,
)
from everstep.local_protocol import ToAgent
from everstep.protocol import Generation, Source
from everstep.testing import faults

from . import hybrid
from .agreement import Agreement, Card, Sight, agree, common_groups, may_begin, nobody_holds
from .anomaly import Losses
from .checkpoints import Checkpoints, look_around
from .construction import CONSTRUCTION_TIMEOUT, AcceleratorGroups, Construction, Wanted
from .escapes import Alone, Escape, OfGeneration
from .fence import Fence
from .moves import Joining, Meeting, Phases, resume_alone
from .own_groups import OwnGroups, Ranks, StableGroup
from .peers import PeerWatch
from .place import Place
from .rendezvous import RendezvousClient, RendezvousStore, Superseded
from .settings import Settings
from .shard_moves import ShardMoves
from .sharding import SHARD_GROUP, Sharding
from .state import State
from .transfer import TransferServer
from .unwind import Unwind
from .votes import Votes
from .watcher import Watcher

_MEETING_PATIENCE_S = 600.0
_BROKEN_AGAIN_S = 10.0


class Membership:
    """One per process. Everything except ``cut``, ``is_superseded`` and ``tell_broken`` is the training thread's."""

    def __init__(self, settings: Settings, accelerator: AcceleratorGroups | None) -> None:
        self.place = Place()
        self._settings = settings
        self._accelerator = accelerator
        self._fence = Fence()
        self._construction = Construction(settings.address, accelerator)
        self._construction.register()
        self.votes = Votes(settings.address)
        self._server: TransferServer | None = None
        self._peers: PeerWatch | None = None
        self._ports: list[int] = []
        self._vote_ports: list[int] = []
        self._buildable: set[str] = set()
        self._late: Meeting | None = None
        self._store: dist.Store | None = None
        self._meeting_places: list[RendezvousStore] = []
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
        self.groups = OwnGroups()
        self.sharding = Sharding(self.groups)
        self.install_alone()
        if settings.socket_path is not None:
            self._server = TransferServer(settings.address, self._fence)
        self.moves = ShardMoves(self.place, self._server, self._fence, self.sharding)
        if settings.socket_path is not None:
            self.watcher = Watcher(settings.socket_path, settings.process, self._on_newer)

    # ------------------------------------------------------------ any thread

    def is_superseded(self, number: int) -> bool:
        watcher = self.watcher
        return watcher is not None and (watcher.is_dismissed or watcher.newest_number > number)

    def cut(self, below: int) -> None:
        """Makes whoever waits in a group of a generation below this one come free."""
        has_peers = self.place.generation > 0  # a spare that still rehearses is not to be disturbed by the first generation
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
        self.moves.forget_all()
        self.tell_broken(self.place.generation, why)
        raise CollectiveFailed(why)

    def _tell_closed(self, number: int) -> None:
        """A peer's connections have closed: evidence of its death while nobody waits in a collective.

        No collective has failed here so far: a gradient that is in hand stays so, which ``tell_broken`` would deny.
        """
        if self.watcher is not None and not self.is_superseded(number) and self._broken < number:
            self.watcher.tell(ToAgent.BROKEN, generation=number, message="a peer's connections have closed", at=time.time())

    def _escape(self, number: int) -> OfGeneration:
        return OfGeneration(
            lambda: self.is_superseded(number), lambda: self.cut(number + 1), lambda message: self.tell_broken(number, message)
        )

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
        """A run of one rank goes on from its newest checkpoint, if it has any. Raises StateLost, CheckpointsPoisoned."""
        resume_alone(self.place, self.checkpoints)

    def install_alone(self) -> None:
        """A world of one, in which models are wrapped and rehearsed. Listens on loopback only, connects to nobody."""
        self._store = dist.HashStore()
        self._construction.install(self._construction.build(self._store, 0, 1, Alone()), self._store)

    def group(self, name: str, ranks: Ranks) -> StableGroup:
        """The user's group of that name. One that this generation has not built is built now, and then every rank must ask for it."""
        place = self.place
        own = self.groups.declare(name, ranks)
        if name in self._buildable or self._store is None:
            return own
        self._buildable.add(name)
        escape = self._escape(place.generation) if place.generation else Alone()
        store = dist.PrefixStore("later", self._store)
        wanted = self.groups.wanted(lambda: store, place.rank, place.world_size, {name})
        around = self._fence.around_construction(place.generation, is_further=True)
        with around if place.generation else contextlib.nullcontext():  # alone there is nothing that could be cut
            built = self._construction.build_all(wanted, escape)
        self.groups.install(built, store, place.rank, place.world_size, {name})
        return own

    def mesh(self, shards: int | None, every: int, device_type: str) -> DeviceMesh:
        self.sharding.want(shards, every)
        self.group(SHARD_GROUP, None)
        if shards is not None:
            hybrid.declare(self.groups, shards)
            self.group(hybrid.REPLICATE_GROUP, None)
        return self.sharding.mesh(device_type)

    def attach(self, state: State) -> None:
        """The state of this run: where it is sharded and replicated, its gradients are averaged over the replicas."""
        self.moves.is_sharded = state.is_sharded
        if state.is_sharded and self.sharding.shards is not None:
            hybrid.average_over_replicas(state.model, hybrid.declare(self.groups, self.sharding.shards))

    def await_replica(self) -> None:
        """Raises CollectiveFailed: this rank's vote would say that no step can be lost."""
        try:
            self.moves.await_replica()
        except CollectiveFailed as error:
            self.tell_broken(self.place.generation, str(error))
            raise

    def committed(self, state: State) -> None:
        """A step is committed: whoever waits for it can read it, and the copy of the shard begins."""
        self._finish_join()
        self.moves.replicate(state, self.checkpoints)

    def join(self, state: State) -> Source | None:
        """Joins the newest generation of which this process is a member, waiting for one. None when dismissed meanwhile."""
        while (generation := self._await_membership()) is not None:
            try:
                return self._join(generation, state)
            except (Unwind, Superseded):
                continue
            except (StateLost, StateMismatch, ShardsDoNotFit, CheckpointMismatch, CheckpointsPoisoned):
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
        """A generation without this process: a spare from now on, with a state that ages. A gradient in hand is of a world that is no more."""
        self.place.generation = number
        self.place.alone_since, self.place.is_reduced, self.place.is_aged = 0, False, self.place.holds_state
        self.moves.forget_all()

    def _join(self, generation: Generation, state: State) -> Source:
        phases = Phases({"notified": self._heard_at})
        phases.end("released")
        state.come_to_rest()
        if self._late is not None:
            self._late.client.close()
            self._late = None
        if self._server is not None:
            self._server.publish(None)  # it is about to change: nobody of the generation before may go on reading it
        self.moves.begin_join(generation.number, generation.token)
        rank = self._take_place(generation)
        if self._peers is not None:
            self._peers.stop()
        self._construction.uninstall()
        escape = self._escape(generation.number)
        client = RendezvousClient(generation, escape.is_superseded, self._fence, _MEETING_PATIENCE_S)
        with contextlib.ExitStack() as opened:
            opened.enter_context(contextlib.closing(client))
            agreement = self._agree(client, generation, state)
            self.moves.heed(agreement)
            phases.end("agreed")
            self._build(generation, rank, escape, state)
            phases.end("grouped")
            faults.point("transfer")
            joining = Joining(generation, agreement, state, self._ports, self.checkpoints, escape.is_superseded)
            meeting = Meeting(client, joining, phases)
            try:
                meeting.source, meeting.moved = self.moves.take(joining)
                if self.moves.is_late(joining):
                    self._late = meeting
                    opened.pop_all()
                else:
                    self._meet_again(meeting)
            except BaseException:
                self.moves.undo(state)
                raise
        return meeting.source

    def _finish_join(self) -> None:
        """A rank that others waited for has rolled forward, and its state can be read now. Every other rank has nothing to do here."""
        meeting, self._late = self._late, None
        if meeting is None:
            return
        try:
            with contextlib.closing(meeting.client):
                self.moves.publish_late(meeting.joining)
                self._meet_again(meeting)
        except Superseded:
            return  # the next step begins with that
        except (EverstepError, OSError) as error:
            self.tell_broken(meeting.joining.generation.number, f"{type(error).__name__}: {error}")

    def _meet_again(self, meeting: Meeting) -> None:
        """Everybody holds the state: what was given away can change again."""
        joining, client = meeting.joining, meeting.client
        client.meet("held", self.place.rank, joining.generation.world_size)
        if self.checkpoints is not None:
            self.checkpoints.joined(self.place.rank, joining.generation.cause)
        self.moves.settle(joining)
        if self._server is not None:
            self._server.publish(None)
        meeting.phases.end("transferred")
        self._tell_reformed(meeting.source, meeting.moved, meeting.phases)

    def _take_place(self, generation: Generation) -> int:
        rank = generation.rank_of(self._settings.process)
        if rank is None:
            raise Superseded
        place = self.place
        if not place.holds_state and not (place.alone_since and generation.number == place.generation + 1):
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
            is_aged=place.is_aged,
            structure=state.structure(),
            transfer_port=self._server.port if self._server else 0,
            vote_port=self.votes.open(),
            alone_since=place.alone_since,
            initial=self.initial_digest,
            loss=place.last_loss,
            groups=self.groups.names,
            anomalies=place.losses.decided(),
        )
        told = meeting.gather("cards", place.rank, generation.world_size, self.moves.signed(card).to_wire())
        cards = tuple(Card.from_wire(one) for one in told)
        self._ports, self._vote_ports = [laid.transfer_port for laid in cards], [laid.vote_port for laid in cards]
        self._buildable = common_groups(cards)
        place.losses.learn(Losses.from_wire(card.anomalies) for card in cards)
        sights: tuple[Sight, ...] = ()
        if not nobody_holds(cards):
            place.losses.not_after = None
        else:
            begun = not may_begin(cards, generation.number, generation.cause)
            if self.checkpoints is not None:
                self.checkpoints.not_after = place.losses.not_after
            sights = look_around(meeting, self.checkpoints, place, generation.world_size, has_begun=begun)
        return agree(cards, generation.number, generation.cause, sights)

    def _build(self, generation: Generation, rank: int, escape: Escape, state: State) -> None:
        self._meeting_places = []
        self._store = store = self._new_store(generation, escape)
        faults.point("construct")
        size = generation.world_size
        wanted = self.groups.wanted(lambda: self._new_store(generation, escape), rank, size, self._buildable)
        with self._fence.around_construction(generation.number, (member.address for member in generation.members)):
            built = self._construction.build_all({**wanted, "": Wanted(store, rank, size)}, escape)
            self.votes.meet(generation, rank, self._vote_ports, escape)
        group = built.pop("")
        self._peers = PeerWatch(self._fence.connections(), lambda: self._tell_closed(generation.number))
        self._construction.install(group, store)
        self.groups.install(built, store, rank, size, self._buildable)
        state.regroup(dist.group.WORLD)

    def _new_store(self, generation: Generation, escape: Escape) -> dist.Store:
        """On a connection of its own: groups are built beside each other, and one that waits for a key must not keep another from giving its own."""
        client = RendezvousClient(generation, escape.is_superseded, self._fence, CONSTRUCTION_TIMEOUT.total_seconds())
        self._meeting_places.append(RendezvousStore(client))
        return dist.PrefixStore(f"g{generation.number}", self._meeting_places[-1])

    def _tell_reformed(self, source: Source, moved: int, phases: Phases) -> None:
        place, watcher = self.place, self.watcher
        if watcher is None:
            return
        watcher.stands_at(place.generation, place.step)
        for kind in (ToAgent.BROKEN, ToAgent.FINISHED, ToAgent.FAILED):
            watcher.withdraw(kind)
        told: dict[str, Any] = {"generation": place.generation, "rank": place.rank, "step": place.step, "source": str(source)}
        told |= {"bytes_moved": moved, "phases": phases.ends, **self.moves.redundancy()}
        watcher.tell(ToAgent.REFORMED, **told)
        if place.rank == 0:
            for step in place.recent:
                watcher.tell(ToAgent.PROGRESS, **{**step, "generation": place.generation})
