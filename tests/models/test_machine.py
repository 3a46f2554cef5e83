from __future__ import annotations

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.access.states import KEY
from models.cluster.states import CLUSTER, GROUP
from models.directive.states import CURRENT, DIRECTIVE
from models.errors import IllegalMove
from models.job.states import ENDED, JOB, PROCESS, JobState
from models.machine import Machine
from models.node.states import COUNTED, NODE, WANTED
from models.operation.states import OPERATION

MACHINES = (CLUSTER, GROUP, NODE, JOB, PROCESS, DIRECTIVE, OPERATION, KEY)
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.noun)


class Lamp(StrEnum):
    OFF = "off"
    ON = "on"
    BROKEN = "broken"


@each_machine
def test_every_state_has_its_row_and_can_be_reached(machine: Machine[StrEnum]) -> None:
    assert set(machine.states) == set(type(machine.initial)) == machine.reachable(machine.initial)


@each_machine
def test_every_state_can_still_come_to_an_end(machine: Machine[StrEnum]) -> None:
    for state in machine.states:
        assert any(machine.is_terminal(end) for end in machine.reachable(state)), state


@each_machine
def test_every_edge_says_what_causes_it(machine: Machine[StrEnum]) -> None:
    for old in machine.states:
        for new in machine.next(old):
            assert machine.event(old, new).strip()
            assert new is not old


@each_machine
def test_live_states_are_exactly_those_that_something_can_follow(machine: Machine[StrEnum]) -> None:
    assert set(machine.live) == {state for state in machine.states if machine.next(state)}


@given(st.sampled_from(MACHINES), st.data())
def test_a_random_walk_never_leaves_the_table(machine: Machine[StrEnum], data: st.DataObject) -> None:
    state = machine.initial
    for _ in range(30):
        wanted = data.draw(st.sampled_from(machine.states))
        if wanted in machine.next(state):
            machine.event(state, wanted)
            state = wanted
            assert state in machine.reachable(machine.initial)
        else:
            with pytest.raises(IllegalMove):
                machine.event(state, wanted)


@each_machine
def test_the_diagram_draws_every_edge_once(machine: Machine[StrEnum]) -> None:
    drawn = machine.mermaid().splitlines()
    edges = {f"    {old} --> {new}: {machine.event(old, new)}" for old in machine.states for new in machine.next(old)}
    ends = {f"    {state} --> [*]" for state in machine.states if machine.is_terminal(state)}
    assert drawn[:2] == ["stateDiagram-v2", f"    [*] --> {machine.initial}"]
    assert sorted(drawn[2:]) == sorted(edges | ends)


def test_a_table_that_forgets_a_state_is_refused() -> None:
    with pytest.raises(ValueError, match="no row for"):
        Machine("Lamp", initial=Lamp.OFF, table={Lamp.OFF: {Lamp.ON: "switched"}, Lamp.ON: {}})


def test_a_table_with_a_state_that_nothing_leads_to_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be reached"):
        Machine("Lamp", initial=Lamp.OFF, table={Lamp.OFF: {Lamp.ON: "switched"}, Lamp.ON: {}, Lamp.BROKEN: {}})


def test_an_illegal_move_names_the_row_and_both_states() -> None:
    with pytest.raises(IllegalMove, match="Job 'j-1' cannot go from queued to training"):
        JOB.event(JobState.QUEUED, JobState.TRAINING, name="j-1")


def test_groups_of_states_follow_from_the_tables() -> None:
    assert set(ENDED) == {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}
    assert set(CURRENT) == set(DIRECTIVE.live)
    assert not any(NODE.is_terminal(state) for state in (*COUNTED, *WANTED))
