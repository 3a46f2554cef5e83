from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.protocol import Assignment, Directive, Fault, Generation, Launch, Member, Process, ProgressReport, StepReport, Welcome
from tests.workers.providers.contract import spec
from workers.fleet.fleet import Agents
from workers.fleet.node import Node
from workers.fleet.scenario import Scenario
from workers.fleet.timeline import Timeline


class World:
    """Some nodes of a fleet in a time that is told, and what each has said."""

    def __init__(self, count: int = 2, **wire: Any) -> None:
        self.now = 0.0
        self.timeline = Timeline(lambda: self.now, began_at=1_900_000_000.0)
        self.agents = Agents(Scenario.read({"training": {"steps": 5}} | wire), self.timeline)
        for number in range(count):
            self.agents.cloud.launch(spec(f"n{number}"))
        self.run(0)
        self.said: dict[str, list[Any]] = {}
        for node in self.nodes:
            node.welcomed(Welcome("token", 1.0))

    @property
    def nodes(self) -> list[Node]:
        return list(self.agents.nodes.values())

    def run(self, until: float) -> None:
        while self.timeline.next_at is not None and self.timeline.next_at <= until:
            self.now = max(self.now, self.timeline.next_at)
            self.timeline.advance()
        self.now = until

    def told(self, node: Node) -> list[Any]:
        """Everything that it has said since the last call, in order."""
        found = []
        while batch := node.batch():
            found += [report for _, report in batch]
            node.confirm()
        return found

    def assign(self, node: Node, *processes: str, generation: Generation | None = None, number: int = 1) -> None:
        listed = tuple(Process(process, rank) for rank, process in enumerate(processes))
        told = Assignment("job", Launch(("python", "t.py"), "/"), listed, generation)
        node.hear(Directive(number, told).to_wire())


def generation(number: int, *processes: str) -> Generation:
    members = tuple(Member(rank, process, f"n{rank}", "10.0.0.1") for rank, process in enumerate(processes))
    return Generation("job", number, "test", members, "10.0.0.1:1", "t")


def kinds(reports: list[Any]) -> list[str]:
    return [f"{one.kind}:{one.status}" if one.kind == "process" else one.kind for one in reports]


def test_a_node_that_is_welcomed_tells_its_hardware_and_that_it_has_lived():
    world = World(1)
    world.run(1)
    hardware, lived = world.told(world.nodes[0])
    assert (hardware.vendor, hardware.devices) == ("cpu", ())
    assert (lived.kind, lived.exit_code) == ("lifecycle", 0)


def test_a_type_with_accelerators_has_as_many_as_the_catalogue_says():
    world = World(0)
    world.agents.cloud.launch(spec("n"))
    world.agents.cloud.launch(replace(spec("p"), instance_type="ml.p5.48xlarge"))
    world.run(0)
    node = world.nodes[1]
    node.welcomed(Welcome("token", 1.0))
    hardware = world.told(node)[0]
    assert (hardware.vendor, len(hardware.devices), hardware.expected) == ("nvidia", 8, 8)


def test_two_nodes_train_a_job_to_its_end_and_let_go_of_it():
    world = World()
    one, two = world.nodes
    first = generation(1, "a", "b")
    world.assign(one, "a", generation=first)
    world.assign(two, "b", generation=first)
    world.run(60)
    told = world.told(one)
    assert [kind for kind in kinds(told)[1:] if kind != "lifecycle"] == [
        "process:started",
        "process:ready",
        "reformed",
        "progress",
        "finished",
    ]
    progress = told[-2]
    assert [step.step for step in progress.steps] == [0, 1, 2, 3, 4]
    assert told[-1].digest == world.told(two)[-1].digest
    for node in world.nodes:
        world.assign(node, number=2)
    world.run(70)
    assert kinds(world.told(one)) == ["process:exited"]
    assert not one.processes


def test_survivors_complain_at_once_and_go_on_with_the_state_that_they_kept():
    world = World(3, training={"steps": 100})
    one, two, three = world.nodes
    first = generation(1, "a", "b")
    for node, process in ((one, "a"), (two, "b"), (three, "c")):
        world.assign(node, process, generation=first)
    world.run(10)
    world.told(one)
    world.agents.cloud.kill(two.machine.spec.claim)
    assert kinds(world.told(one)) == ["broken"]
    second = generation(2, "a", "c")
    for node, process in ((one, "a"), (three, "c")):
        world.assign(node, process, generation=second, number=2)
    world.run(12)
    reformed = next(report for report in world.told(three) if report.kind == "reformed")
    assert (reformed.source, reformed.step) == ("peer", 10)
    kept = next(report for report in world.told(one) if report.kind == "reformed")
    assert (kept.source, kept.step) == ("kept", 10)


@pytest.mark.parametrize(("every", "goes_on_from"), [(0, 0), (4, 8)])
def test_a_sharded_job_that_lost_a_member_goes_on_from_its_newest_checkpoint(every, goes_on_from):
    world = World(3, training={"steps": 100, "sharded": True, "checkpoint_every": every})
    one, two, three = world.nodes
    for node, process in ((one, "a"), (two, "b"), (three, "c")):
        world.assign(node, process, generation=generation(1, "a", "b"))
    world.run(10)
    world.agents.cloud.kill(two.machine.spec.claim)
    world.told(one)
    for node, process in ((one, "a"), (three, "c")):
        world.assign(node, process, generation=generation(2, "a", "c"), number=2)
    world.run(10.5)
    assert next(report for report in world.told(one) if report.kind == "reformed").step == goes_on_from


def test_a_process_id_is_never_started_twice_and_an_older_directive_changes_nothing():
    world = World(1)
    (node,) = world.nodes
    world.assign(node, "a", number=5)
    world.assign(node, "a", "b", number=4)
    world.assign(node, "a", number=5)
    world.run(1)
    assert kinds(world.told(node)).count("process:started") == 1


def test_a_job_that_a_fresh_stream_does_not_list_ends():
    world = World(1)
    (node,) = world.nodes
    world.assign(node, "a")
    node.begin()
    node.hear(None)
    world.run(1)
    assert kinds(world.told(node))[-1] == "process:exited"


def test_a_fault_is_struck_once_however_often_it_is_told():
    world = World(1)
    (node,) = world.nodes
    world.assign(node, "a")
    world.run(1)
    world.told(node)
    for _ in range(3):
        node.hear({"fault": Fault("f", "kill-rank", process="a").to_wire()})
        node.hear({"fault": Fault("g", "corrupt-shard").to_wire()})
    exited, struck, missed = world.told(node)
    assert (exited.signal, struck.outcome, missed.outcome) == (9, "struck", "missed")


def test_a_host_that_is_asked_to_die_answers_first():
    world = World(1)
    (node,) = world.nodes
    node.hear({"fault": Fault("f", "kill-node").to_wire()})
    assert world.told(node)[-1].outcome == "struck"
    world.run(1)
    assert world.nodes == []


def test_a_dead_nodes_agent_says_nothing_more():
    world = World(1)
    (node,) = world.nodes
    world.assign(node, "a")
    world.told(node)
    world.agents.cloud.kill(node.machine.spec.claim)
    world.run(100)
    assert world.told(node) == []


def test_what_was_not_confirmed_is_sent_again_under_the_same_numbers():
    world = World(1)
    (node,) = world.nodes
    first = list(node.batch())
    world.assign(node, "a")
    assert node.batch() == first
    node.confirm()
    assert node.batch()[0][0] == first[-1][0] + 1


@settings(max_examples=20)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_progress_that_waits_is_bounded_and_no_second_of_it_is_lost(bundles):
    world = World(1)
    (node,) = world.nodes
    world.told(node)
    number = 0
    for count in bundles:
        node._say(ProgressReport("job", 1, tuple(StepReport(number + index, 1.0, 0.0) for index in range(count))))
        number += count
    steps = [step for report in world.told(node) for step in report.steps]
    assert len(steps) <= 2_000
    assert sum(step.seconds for step in steps) == number
    assert steps[-1].step == number - 1
