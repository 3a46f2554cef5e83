"""Ranks on nodes that are about to go: handed over before the deadline, and never for nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.notices import LEAVING_CAUSE
from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import World, nodes_of, published, settle, training, world
from workers.plans.job import plan
from workers.plans.job_seen import CheckpointSeen, GiveUp, Publish, Say, Start

SOON = timedelta(seconds=120)


def notice(here: World, node: str, within: timedelta | None = SOON) -> None:
    here.change_node(node, leave_by=None if within is None else here.now + within, leave_why="taken back", is_held=True)


def withdraw(here: World, node: str) -> None:
    here.change_node(node, leave_by=None, leave_why=None, is_held=False)


def test_a_ready_spare_takes_the_rank_at_once_and_the_process_that_left_is_released_when_it_holds_the_state():
    here = training()
    leaver, spare = here.rank(1), here.seen.alive[-1]
    notice(here, leaver.node)
    (handed_over,) = published(here.step())
    assert handed_over.members[1] == spare.id
    assert handed_over.why.startswith(LEAVING_CAUSE)
    assert "rank 1 by 00:0" in handed_over.why
    assert here.look() == ()
    assert here.process(leaver.id).is_alive, "its state may still be needed"
    here.run(JobState.TRAINING)
    here.look()
    assert here.process(leaver.id).state is ProcessState.LOST
    assert [action for action in here.taken if isinstance(action, GiveUp)] == [
        GiveUp(leaver.id, "its node is to be left: taken back", is_planned=True)
    ]


def test_without_a_spare_a_process_on_a_free_node_is_warmed_up_while_training_goes_on():
    here = training(nodes=3, spares=0)
    here.add_node("n9")
    notice(here, "n1")
    actions = here.look()
    assert [action.places for action in actions if isinstance(action, Start)] == [(("n9", 0),)]
    assert here.seen.state is JobState.TRAINING
    settle(here)
    assert nodes_of(here) == ["n0", "n9", "n2"]
    assert here.seen.state is JobState.TRAINING


def test_without_any_other_node_training_goes_on_to_the_end_and_says_why_it_will_not():
    here = training(nodes=3, spares=0)
    notice(here, "n1")
    settle(here)
    assert here.seen.state is JobState.TRAINING
    assert len(here.seen.generations) == 1
    assert "No other node is free" in here.seen.why
    here.now += SOON
    here.kill_rank(1)
    here.look()
    assert here.seen.state is JobState.RECOVERING
    assert here.count(Start) == 0, "a node that is to be left takes no new process"
    here.add_node("n9")
    here.run(JobState.TRAINING)
    assert nodes_of(here) == ["n0", "n9", "n2"]


def test_two_notices_with_one_spare_wait_for_the_second_process_unless_time_is_short():
    here = training(nodes=5)
    here.add_node("n9")
    for node in ("n0", "n2"):
        notice(here, node)
    assert published(here.step()) == []
    settle(here)
    assert not {"n0", "n2"} & set(nodes_of(here))
    assert len(here.seen.generations) == 2, "both at once"


def test_a_five_second_notice_hands_over_those_for_whom_somebody_is_ready():
    here = training(nodes=4)
    for node in ("n0", "n2"):
        notice(here, node, timedelta(seconds=5))
    (handed_over,) = published(here.step())
    assert [here.process(one).node for one in handed_over.members].count("n3") == 1
    settle(here, 3)
    assert len({"n0", "n2"} & set(nodes_of(here))) == 1


def test_a_notice_during_a_reform_waits_until_it_is_over_and_a_short_one_does_not():
    for within, is_at_once in ((SOON, False), (timedelta(seconds=5), True)):
        here = training(nodes=6, spares=2)
        here.kill_rank(0)
        here.look()
        notice(here, "n1", within)
        assert bool(published(here.look())) is is_at_once
        here.run(JobState.TRAINING)
        settle(here)
        assert "n1" not in nodes_of(here)


def test_a_spare_whose_node_is_to_be_left_is_released_and_another_one_is_started_elsewhere():
    here = training()
    spare = here.seen.alive[-1]
    here.add_node("n9")
    notice(here, spare.node)
    settle(here)
    assert here.process(spare.id).state is ProcessState.LOST
    assert [process.node for process in here.seen.alive if process.id not in here.seen.generation.members] == ["n9"]
    assert len(here.seen.generations) == 1


def test_a_withdrawn_notice_leaves_the_job_alone():
    here = training(nodes=3, spares=0)
    notice(here, "n1")
    here.look()
    withdraw(here, "n1")
    here.add_node("n9")
    settle(here)
    assert len(here.seen.generations) == 1
    assert here.count(Start) == 0


def test_a_recommendation_moves_a_rank_only_where_a_spare_is_ready():
    here = training(nodes=3, spares=0)
    here.add_node("n9")
    notice(here, "n1", None)
    settle(here)
    assert (len(here.seen.generations), here.count(Start)) == (1, 0)
    here = training()
    notice(here, "n1", None)
    settle(here)
    assert nodes_of(here) == ["n0", "n3", "n2"]


def test_a_recommendation_moves_all_ranks_of_a_node_or_none():
    here = training(nodes=2, replicas=2, processes_per_node=2, spares=0)
    here.add_node("n9")
    notice(here, "n0", None)
    settle(here)
    assert len(here.seen.generations) == 1


def test_somebody_who_holds_the_state_stays_when_all_nodes_are_to_be_left():
    here = training(nodes=4, replicas=2, spares=2)
    for node in ("n0", "n1"):
        notice(here, node)
    (first,) = published(here.step())
    assert len({here.process(one).node for one in first.members} & {"n0", "n1"}) == 1
    settle(here)
    assert set(nodes_of(here)) == {"n2", "n3"}
    assert len(here.seen.generations) == 3


def test_the_only_holder_of_the_state_trains_on_and_its_successor_begins_from_a_checkpoint_in_time():
    here = training(nodes=3, replicas=1)
    here.change_seen(has_namespace=True, checkpoint=CheckpointSeen(step=40, nodes=1), step=42)
    notice(here, "n0")
    settle(here, 20)
    assert len(here.seen.generations) == 1
    assert "goes on elsewhere from a checkpoint" in here.seen.why
    decision = plan(here.seen, here.now)
    assert decision.again_in == here.seen.nodes["n0"].leave_by - here.seen.patience.leaving - here.now
    here.now += decision.again_in
    (handed_over,) = published(here.step())
    assert [here.process(one).node for one in handed_over.members] == ["n1"]
    assert "goes on from step 40" in handed_over.why


def test_the_only_holder_of_the_state_stays_to_the_end_where_nothing_of_it_is_kept_elsewhere():
    here = training(nodes=2, replicas=1)
    notice(here, "n0", timedelta(seconds=5))
    settle(here, 4)
    assert len(here.seen.generations) == 1


def test_who_gave_its_rank_away_is_called_back_when_all_who_took_over_die_before_they_hold_the_state():
    here = training(nodes=3, replicas=2)
    leaver = here.rank(0)
    notice(here, leaver.node)
    here.step()
    here.kill_rank(1)
    here.look()
    assert leaver.id in here.seen.generation.members


def test_a_job_that_forms_leaves_the_node_and_takes_another():
    here = world(nodes=4, spares=0)
    here.step()
    notice(here, "n1")
    here.run(JobState.TRAINING)
    assert nodes_of(here) == ["n0", "n2", "n3"]


def test_a_script_that_knows_nothing_of_us_is_left_to_work_until_the_deadline():
    here = world(nodes=1, replicas=1, spares=0)
    here.step()
    (process,) = here.seen.alive
    here.change(process.id, state=ProcessState.STARTED)
    notice(here, "n0")
    here.look()
    assert here.process(process.id).state is ProcessState.STARTED


def test_a_queued_job_is_not_placed_on_a_node_that_is_to_be_left():
    here = world(nodes=3)
    notice(here, "n1")
    (said,) = here.step()
    assert isinstance(said, Say)


def test_a_job_that_is_about_to_end_is_left_to_end():
    here = training()
    here.finish()
    here.change(here.rank(0).id, state=ProcessState.READY)
    notice(here, here.rank(0).node)
    assert published(here.look()) == []


@pytest.mark.timeout(60)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_said_of_nodes_nothing_is_placed_on_those_to_be_left_and_a_holder_stays_a_member(data):
    here = training(nodes=6, replicas=3, spares=2)
    for _ in range(data.draw(st.integers(1, 14))):
        node = data.draw(st.sampled_from(sorted(here.seen.nodes)))
        match data.draw(st.sampled_from(("notice", "short", "recommend", "withdraw", "kill", "work", "time"))):
            case "notice":
                notice(here, node)
            case "short":
                notice(here, node, timedelta(seconds=5))
            case "recommend":
                notice(here, node, None)
            case "withdraw":
                withdraw(here, node)
            case "kill":
                alive = [one for one in here.seen.alive if one.id in here.seen.generation.members and one.reformed]
                if len(alive) > 2:
                    here.exit(alive[0].id, signal=9)
            case "work":
                here.work()
            case "time":
                here.now += timedelta(seconds=data.draw(st.sampled_from((0.5, 5, 120))))
        _check(here, here.look())
    assert here.seen.state not in (JobState.FAILED, JobState.STOPPED)


def _check(here: World, actions) -> None:
    to_be_left = {node.id for node in here.seen.nodes.values() if node.leave_why is not None}
    for action in actions:
        if isinstance(action, Start):
            assert not {node for node, _ in action.places} & to_be_left
        if isinstance(action, Publish):
            assert any(here.process(one).reformed for one in action.members)
