"""A job's rows as plain values, and what the plan's actions, agents and faults do to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from models.ids import NodeId, ProcessId
from models.job.states import JOB, PROCESS, JobState, ProcessState
from workers.plans.job import plan
from workers.plans.job_seen import (
    Action,
    Await,
    CountRestarts,
    GenerationSeen,
    GiveUp,
    Halt,
    JobSeen,
    LagSeen,
    Move,
    NodeSeen,
    ProcessSeen,
    Publish,
    Resize,
    Say,
    SizeChange,
    Start,
    Told,
    Withdraw,
)
from workers.plans.stragglers import CAUSE

START = datetime(2031, 5, 1, tzinfo=UTC)


@dataclass
class World:
    """``deaf`` processes are alive and never join a generation."""

    seen: JobSeen
    now: datetime = START
    numbers: itertools.count = field(default_factory=lambda: itertools.count(1))
    taken: list = field(default_factory=list)
    deaf: set = field(default_factory=set)

    # ------------------------------------------------------------------ the plan, and what its actions write

    def step(self) -> tuple:
        decision = plan(self.seen, self.now)
        for action in decision.actions:
            self._write(action)
        self.taken += decision.actions
        return decision.actions

    def look(self) -> tuple:
        """Steps until the plan has nothing more to do at this moment."""
        done = []
        for _ in range(20):
            actions = [action for action in self.step() if not isinstance(action, Say)]
            done += actions
            if not actions:
                return tuple(done)
        message = f"no fixed point: {done}"
        raise AssertionError(message)

    def run(self, until: JobState, *, rounds: int = 120) -> None:
        """Lets agents and plan work, half a second a round, until the job is in the state."""
        for _ in range(rounds):
            self.look()
            if self.seen.state is until:
                return
            self.work()
            self.now += timedelta(seconds=0.5)
        message = f"never {until}: {self.seen.state}, {self.seen.why}, {self.seen.processes}"
        raise AssertionError(message)

    def _write(self, action) -> None:
        match action:
            case Start(places=places):
                new = [
                    ProcessSeen(ProcessId(f"p-{next(self.numbers)}"), node, local_rank, PROCESS.initial, self.now)
                    for node, local_rank in places
                ]
                self.seen = replace(self.seen, processes=(*self.seen.processes, *new))
            case GiveUp(process=process, why=why):
                self.change(process, state=ProcessState.LOST, state_since=self.now, failure=why)
            case Publish(members=members, why=why):
                self._publish(members)
                if why.startswith(CAUSE):
                    self.change_seen(straggler_replaced_at=self.now)
            case Move(new=new, why=why):
                JOB.check(self.seen.state, new)
                halted = self.now if JOB.is_terminal(new) else self.seen.halted_at
                self.seen = replace(self.seen, state=new, why=why, halted_at=halted)
            case CountRestarts(restarts=restarts):
                self.seen = replace(self.seen, restarts=restarts)
            case Halt():
                self.seen = replace(self.seen, halted_at=self.now)
            case Withdraw(node=node):
                self.seen = replace(self.seen, told=tuple(told for told in self.seen.told if told.node != node))
            case Say(why=why):
                self.seen = replace(self.seen, why=why)
            case _:
                self._write_size(action)

    def _write_size(self, action) -> None:
        match action:
            case Resize(replicas=replicas):
                self.seen = replace(self.seen, replicas=replicas)
            case Await(nodes=nodes):
                since = (self.seen.awaits_since or self.now) if nodes else None
                self.seen = replace(self.seen, awaits=nodes, awaits_since=since)

    def _publish(self, members) -> None:
        assert len(members) == len(set(members))
        self._resize(len(members))
        for process in members:
            one = self.process(process)
            assert one.state in (ProcessState.READY, ProcessState.FINISHED) or one.exit_code == 0, one
            if one.state is ProcessState.FINISHED:
                self.change(process, state=ProcessState.READY)
        number = len(self.seen.generations) + 1
        generations = (*self.seen.generations, GenerationSeen(number, tuple(members), self.now, is_formed=False))
        self.seen = replace(self.seen, generations=generations)

    def _resize(self, ranks: int) -> None:
        """Only an elastic job's memberships differ in size, and only by sizes that it allows."""
        elastic, before = self.seen.elastic, self.seen.generation
        if elastic is None:
            assert ranks == self.seen.world_size
            return
        nodes, rest = divmod(ranks, self.seen.processes_per_node)
        assert rest == 0
        assert nodes in elastic.policy.sizes
        if before is not None and len(before.members) != ranks:
            change = SizeChange(self.now, len(before.members) // self.seen.processes_per_node, nodes)
            self.seen = replace(self.seen, elastic=replace(elastic, changes=(*elastic.changes, change)))
        self.seen = replace(self.seen, replicas=nodes)

    # ------------------------------------------------------------------ agents

    def work(self) -> None:
        """Agents start what is wanted, processes get ready and join; halted ones leave."""
        for process in self.seen.alive:
            if not self.node(process.node).can_be_told:
                continue
            if self.seen.halted_at is not None:
                self.exit(process.id, code=0)
            elif process.state is ProcessState.WANTED:
                self.change(process.id, state=ProcessState.STARTED, state_since=self.now)
            elif process.state is ProcessState.STARTED:
                self.change(process.id, state=ProcessState.READY, state_since=self.now)
        self.join()

    def join(self) -> None:
        generation = self.seen.generation
        if generation is None:
            return
        members = [self.process(process) for process in generation.members]
        is_whole = all(process.is_alive and self.node(process.node).serves for process in members)
        for process in members:
            if process.is_alive and process.id not in self.deaf and is_whole:
                self.change(process.id, reformed=generation.number)
        if all(self.process(process).reformed == generation.number for process in generation.members):
            formed = (*self.seen.generations[:-1], replace(generation, is_formed=True))
            self.seen = replace(self.seen, generations=formed, has_ever_formed=True)

    # ------------------------------------------------------------------ faults and facts

    def exit(self, process: str, *, code: int | None = None, signal: int | None = None, failure: str | None = None) -> None:
        self.change(process, state=ProcessState.EXITED, state_since=self.now, exit_code=code, signal=signal, failure=failure)

    def fail_rank(self, rank: int, text: str = "ValueError: no") -> None:
        self.exit(self.rank(rank).id, code=1, failure=text)

    def kill_rank(self, rank: int) -> None:
        self.exit(self.rank(rank).id, signal=9)

    def close_stream(self, node: str) -> None:
        self.change_node(node, stream_lost_at=self.now)

    def open_stream(self, node: str) -> None:
        self.change_node(node, stream_lost_at=None)

    def complain(self, rank: int) -> None:
        """A collective of the current generation broke in this member."""
        self.change(self.rank(rank).id, broken=self.seen.generation.number, broken_at=self.now)

    def lag(self, rank: int, own_s: float = 0.4) -> ProcessSeen:
        """A member has held the others up in most of the last steps."""
        process = self.rank(rank)
        self.change(process.id, lag=LagSeen(self.seen.generation.number, rank, own_s, 0.1))
        return process

    def finish(self) -> None:
        for process in self.seen.generation.members:
            self.change(process, state=ProcessState.FINISHED)

    def release(self, node: str) -> None:
        self.change_node(node, serves=False, is_going=True, went_at=self.now)

    def remove(self, node: str) -> None:
        self.seen = replace(self.seen, nodes={key: value for key, value in self.seen.nodes.items() if key != node})

    def add_node(self, name: str) -> None:
        age = 1 + max((node.age for node in self.seen.nodes.values()), default=0)
        self.seen = replace(self.seen, nodes={**self.seen.nodes, NodeId(name): NodeSeen(NodeId(name), "workers", age)})

    # ------------------------------------------------------------------ reading and writing values

    def process(self, process: str) -> ProcessSeen:
        return next(one for one in self.seen.processes if one.id == process)

    def rank(self, rank: int) -> ProcessSeen:
        return self.process(self.seen.generation.members[rank])

    def node(self, node: str) -> NodeSeen:
        return self.seen.nodes.get(node) or NodeSeen(NodeId(node), "gone", 0, serves=False, is_going=True)

    def change(self, process: str, **changes) -> None:
        changed = tuple(replace(one, **changes) if one.id == process else one for one in self.seen.processes)
        self.seen = replace(self.seen, processes=changed)

    def change_seen(self, **changes) -> None:
        self.seen = replace(self.seen, **changes)

    def change_elastic(self, **changes) -> None:
        self.seen = replace(self.seen, elastic=replace(self.seen.elastic, **changes))

    def change_node(self, node: str, **changes) -> None:
        self.seen = replace(self.seen, nodes={**self.seen.nodes, NodeId(node): replace(self.seen.nodes[NodeId(node)], **changes)})

    def count(self, kind: type) -> int:
        return sum(isinstance(action, kind) for action in self.taken)


def world(*, nodes: int = 4, replicas: int = 3, **more) -> World:
    names = [NodeId(f"n{number}") for number in range(nodes)]
    seen_nodes = {name: NodeSeen(name, "workers", age) for age, name in enumerate(names)}
    return World(JobSeen(**({"state": JobState.QUEUED, "spares": 1, "replicas": replicas, "nodes": seen_nodes} | more)))


def training(**more) -> World:
    """A job whose first generation has formed."""
    here = world(**more)
    here.run(JobState.TRAINING)
    here.taken.clear()
    return here


def told(*nodes: str) -> tuple[Told, ...]:
    return tuple(Told(NodeId(node), is_delivered=True) for node in nodes)


def published(actions: Iterable[Action]) -> list[Publish]:
    return [action for action in actions if isinstance(action, Publish)]


def nodes_of(here: World) -> list[str]:
    """Where the members of the newest generation are."""
    return [here.process(process).node for process in here.seen.generation.members]


def settle(here: World, seconds: float = 8.0) -> None:
    """Agents and plan work for a while."""
    for _ in range(int(seconds * 2)):
        here.look()
        here.work()
        here.now += timedelta(seconds=0.5)
    here.look()
