from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import told, training, world
from workers.plans.job import plan
from workers.plans.job_seen import CountRestarts, GiveUp, Halt, Move, Publish, Say, Start, Told, Withdraw


def moves(actions) -> list[JobState]:
    return [action.new for action in actions if isinstance(action, Move)]


def published(actions) -> Publish:
    (one,) = [action for action in actions if isinstance(action, Publish)]
    return one


# ------------------------------------------------------------------ the first generation


def test_a_queued_job_without_enough_nodes_says_what_it_waits_for():
    here = world(nodes=2)
    (said,) = here.step()
    assert isinstance(said, Say)
    assert "3 free nodes" in said.why
    assert here.seen.state is JobState.QUEUED


def test_a_job_is_placed_on_its_nodes_and_one_spare():
    here = world(nodes=6)
    here.step()
    assert [process.slot for process in here.seen.processes] == [("n0", 0), ("n1", 0), ("n2", 0), ("n3", 0)]
    assert here.seen.state is JobState.FORMING


def test_no_more_spares_are_started_than_wanted():
    here = world(nodes=8)
    here.run(JobState.TRAINING)
    here.now += timedelta(minutes=1)
    here.look()
    assert len(here.seen.processes) == 4


def test_a_job_starts_without_spares_if_there_are_none_and_takes_one_later():
    here = training(nodes=3)
    assert len(here.seen.alive) == 3
    here.add_node("n9")
    here.look()
    assert here.seen.alive[-1].node == "n9"


def test_nodes_of_other_jobs_and_of_other_groups_are_left_alone():
    here = world(nodes=6, groups=frozenset({"workers"}))
    here.change_node("n0", is_held=True)
    here.change_node("n1", group="other")
    here.step()
    assert {process.node for process in here.seen.processes} == {"n2", "n3", "n4", "n5"}


def test_the_first_generation_is_published_when_enough_whole_nodes_are_ready():
    here = world(nodes=3, replicas=2, processes_per_node=2)
    here.step()
    ready = [("n0", 0), ("n1", 0), ("n2", 0), ("n2", 1), ("n0", 1)]
    for process in here.seen.processes:
        if process.slot in ready:
            here.change(process.id, state=ProcessState.READY)
    here.step()
    assert [here.process(process).slot for process in here.seen.generation.members] == [("n0", 0), ("n0", 1), ("n2", 0), ("n2", 1)]


def test_a_job_trains_when_all_members_have_joined():
    here = world()
    here.run(JobState.TRAINING)
    assert here.seen.generation.is_formed
    assert len(here.seen.generations) == 1


def test_a_node_that_is_lost_while_the_job_forms_is_made_up_for():
    here = world(nodes=5)
    here.step()
    here.release("n0")
    here.run(JobState.TRAINING)
    assert "n0" not in {here.process(process).node for process in here.seen.generation.members}


def test_a_script_that_fails_everywhere_fails_the_job_at_once():
    here = world(max_restarts=10)
    here.step()
    here.work()
    for process in here.seen.alive:
        here.exit(process.id, code=1, failure="Traceback\nImportError: no module named modle")
        here.step()
    assert here.seen.state is JobState.FAILED
    assert "ImportError" in here.seen.why
    assert here.count(Start) == 1


def test_a_single_failure_while_forming_is_tried_again():
    here = world()
    here.step()
    here.work()
    here.exit(here.seen.alive[0].id, code=1, failure="OSError: flaky")
    here.run(JobState.TRAINING)
    assert here.seen.restarts == 1


def test_a_plain_script_that_ends_well_everywhere_succeeds():
    here = world(replicas=2, spares=0)
    here.step()
    for process in here.seen.alive:
        here.exit(process.id, code=0)
    here.look()
    assert here.seen.state is JobState.SUCCEEDED


# ------------------------------------------------------------------ deaths


def test_a_dead_rank_is_taken_by_the_spare_at_once_and_the_others_keep_theirs():
    here = training()
    before = here.seen.generation.members
    spare = here.seen.alive[-1].id
    here.kill_rank(1)
    actions = here.step()
    assert published(actions).members == (before[0], spare, before[2])
    assert moves(actions) == [JobState.RECOVERING]
    here.run(JobState.TRAINING)


def test_a_process_that_is_to_start_anew_is_replaced_in_its_place_and_costs_no_restart():
    here = training(nodes=3, spares=0)
    struck = here.rank(1)
    here.change(struck.id, state=ProcessState.LOST, state_since=here.now, failure="a contained memory error struck it")
    here.run(JobState.TRAINING)
    assert here.rank(1).slot == struck.slot
    assert here.rank(1).id != struck.id
    assert here.seen.restarts == 0


def test_a_new_spare_is_started_after_one_was_used():
    here = training()
    here.kill_rank(1)
    here.step()
    idle = [process for process in here.seen.alive if process.id not in here.seen.generation.members]
    assert [process.node for process in idle] == ["n1"]


def test_a_closed_stream_alone_costs_nobody_anything():
    here = training()
    here.close_stream("n1")
    assert here.look() == ()
    here.now += timedelta(minutes=5)
    assert not [action for action in here.look() if isinstance(action, GiveUp | Publish)]


def test_a_complaint_alone_is_waited_out_for_a_second():
    here = training()
    here.complain(0)
    decision = plan(here.seen, here.now)
    assert decision.actions == ()
    assert decision.again_in == timedelta(seconds=1)


def test_a_closed_stream_and_a_peers_complaint_together_are_a_lost_node():
    here = training()
    before = here.seen.generation.members
    here.close_stream("n1")
    evidence = here.now
    here.now += timedelta(milliseconds=30)
    here.complain(2)
    actions = here.step()
    assert [action.process for action in actions if isinstance(action, GiveUp)] == [before[1]]
    assert published(actions).evidence_at == evidence
    assert here.seen.generation.members[0] == before[0]


def test_a_complaint_of_the_silent_nodes_own_process_is_no_second_witness():
    here = training()
    here.close_stream("n1")
    here.complain(1)
    assert not [action for action in here.step() if isinstance(action, GiveUp)]


def test_an_agent_that_restarts_while_another_rank_dies_is_not_taken_for_a_lost_node():
    here = training()
    here.close_stream("n1")
    here.kill_rank(2)
    here.complain(0)
    actions = here.step()
    assert not [action for action in actions if isinstance(action, GiveUp)]
    assert here.seen.generation.members[1] == published(actions).members[1]


def test_two_nodes_lost_at_once_are_replaced_in_one_generation():
    here = training(nodes=5, spares=2)
    here.close_stream("n1")
    here.close_stream("n2")
    here.complain(0)
    members = published(here.step()).members
    assert {here.process(process).node for process in members} == {"n0", "n3", "n4"}


def test_a_member_on_a_node_that_leaves_counts_as_lost():
    here = training()
    here.release("n2")
    assert here.seen.generation.members[2] not in published(here.step()).members


def test_without_a_spare_the_survivors_wait_for_a_new_process_in_the_warm_slot():
    here = training(spares=0)
    here.kill_rank(1)
    actions = here.step()
    assert moves(actions) == [JobState.RECOVERING]
    (start,) = [action for action in actions if isinstance(action, Start)]
    assert start.places == (("n1", 0),)
    assert not here.count(Publish)
    here.run(JobState.TRAINING)
    assert len(here.seen.generations) == 2


def test_without_a_spare_or_a_node_the_job_waits_and_says_so():
    here = training(nodes=3, spares=0)
    here.release("n1")
    here.look()
    assert here.seen.state is JobState.RECOVERING
    assert "nodes for 1" in here.seen.why
    here.remove("n1")
    here.now += timedelta(minutes=30)
    here.look()
    assert here.seen.state is JobState.RECOVERING
    here.add_node("n9")
    here.run(JobState.TRAINING)


def test_a_spare_on_a_silent_node_is_not_counted_on():
    here = training(nodes=4)
    here.close_stream("n3")
    here.kill_rank(1)
    here.step()
    assert not here.count(Publish)
    here.run(JobState.TRAINING)


def test_a_death_during_a_reform_makes_the_next_generation_at_once():
    here = training(nodes=6, spares=2)
    here.kill_rank(1)
    here.step()
    here.kill_rank(0)
    here.step()
    assert len(here.seen.generations) == 3
    here.run(JobState.TRAINING)


def test_when_everybody_who_held_the_state_is_gone_the_job_fails_and_says_so():
    here = training(nodes=8, replicas=2, spares=1)
    here.kill_rank(0)
    here.kill_rank(1)
    here.step()
    assert here.seen.state is JobState.FAILED
    assert "held the training's state" in here.seen.why


def test_one_survivor_is_enough():
    here = training(nodes=8, replicas=3, spares=2)
    here.kill_rank(0)
    here.kill_rank(2)
    here.run(JobState.TRAINING)


def test_the_ranks_of_a_lost_node_go_to_one_spare_node_with_their_local_ranks():
    here = training(nodes=4, replicas=2, processes_per_node=2, spares=2)
    here.release("n0")
    here.step()
    assert [here.rank(rank).slot for rank in range(2)] == [("n2", 0), ("n2", 1)]


# ------------------------------------------------------------------ user code


def test_user_code_that_fails_is_tried_again_as_often_as_allowed():
    here = training(max_restarts=2, nodes=6)
    for _ in range(2):
        here.fail_rank(1)
        here.run(JobState.TRAINING)
    assert here.seen.restarts == 2
    here.fail_rank(1, "Traceback\nZeroDivisionError: again")
    here.step()
    assert here.seen.state is JobState.FAILED
    assert "ZeroDivisionError: again" in here.seen.why


def test_user_code_that_fails_in_every_rank_at_once_is_told_in_its_own_words():
    here = training(replicas=2, max_restarts=3)
    for rank in range(2):
        here.fail_rank(rank, "Traceback\nValueError: a mistake")
    here.step()
    assert here.seen.state is JobState.FAILED
    assert "held the training's state" in here.seen.why
    assert "ValueError: a mistake" in here.seen.why


def test_a_kill_from_outside_is_not_counted_against_user_code():
    here = training(max_restarts=0, nodes=6)
    here.kill_rank(1)
    here.run(JobState.TRAINING)
    assert here.count(CountRestarts) == 0


def test_a_slot_in_which_processes_keep_dying_is_left_alone_for_a_while():
    here = training(spares=0, nodes=3)
    for _ in range(3):
        here.run(JobState.TRAINING)
        here.kill_rank(1)
        here.step()
    assert not [process for process in here.seen.alive if process.node == "n1"]
    here.run(JobState.TRAINING)


# ------------------------------------------------------------------ errors without deaths, and hangs


def test_a_collective_that_fails_though_nobody_died_is_made_again_with_the_same_members():
    here = training()
    before = here.seen.generation.members
    here.complain(0)
    here.now += timedelta(seconds=1)
    actions = here.step()
    assert published(actions).members == before
    assert moves(actions) == [JobState.RECOVERING]


def test_a_generation_that_does_not_form_is_published_once_more_and_then_the_late_ones_are_replaced():
    here = training()
    spare = here.seen.alive[-1].id
    here.deaf.add(spare)
    here.kill_rank(1)
    here.look()
    here.join()
    here.now += timedelta(seconds=6)
    assert published(here.step()).members[1] == spare
    here.join()
    here.now += timedelta(seconds=12)
    given_up = [action.process for action in here.step() if isinstance(action, GiveUp)]
    assert given_up == [spare]
    here.run(JobState.TRAINING)


def test_a_member_that_has_not_been_told_of_a_generation_is_not_late():
    """Its patience begins when its node is told: that the node could not be heard is not the member's fault."""
    here = training()
    spare = here.seen.alive[-1]
    here.deaf.add(spare.id)
    here.kill_rank(1)
    here.look()
    here.join()
    here.seen = replace(here.seen, told=(Told(spare.node, is_delivered=False),))
    for _ in range(30):
        here.now += timedelta(seconds=1)
        assert not [action for action in here.step() if isinstance(action, GiveUp | Publish)]
    here.seen = replace(here.seen, told=(Told(spare.node, is_delivered=True, delivered_at=here.now),))
    here.now += here.seen.patience.reform / 2
    assert not [action for action in here.step() if isinstance(action, GiveUp | Publish)]
    here.now += here.seen.patience.reform
    assert published(here.step()).members[1] == spare.id


def test_when_nobody_joins_nobody_is_given_up():
    here = world()
    here.run(JobState.FORMING)
    here.work()
    here.work()
    here.look()
    for _ in range(8):
        here.now += timedelta(seconds=61)
        here.look()
    assert here.count(GiveUp) == 0
    here.join()
    here.run(JobState.TRAINING)


def test_a_process_that_its_agent_does_not_start_is_given_up():
    here = world()
    here.step()
    here.now += timedelta(seconds=61)
    assert len([action for action in here.step() if isinstance(action, GiveUp)]) == 4


# ------------------------------------------------------------------ ends


def test_a_job_succeeds_when_all_members_have_finished():
    here = training()
    here.finish()
    here.step()
    assert here.seen.state is JobState.SUCCEEDED


def test_a_member_that_dies_when_it_had_almost_finished_is_replaced_and_the_finished_are_called_back():
    here = training()
    here.finish()
    here.change(here.rank(0).id, state=ProcessState.READY)
    here.kill_rank(0)
    here.run(JobState.TRAINING)
    here.finish()
    here.run(JobState.SUCCEEDED)


def test_after_its_end_a_jobs_processes_are_given_time_to_leave_and_then_nothing_is_left():
    here = training()
    here.finish()
    here.step()
    here.seen = replace(here.seen, told=told("n0", "n1", "n2", "n3"))
    assert plan(here.seen, here.now).again_in == timedelta(seconds=15)
    assert here.step() == ()
    here.work()
    here.step()
    assert here.count(Withdraw) == 4
    assert plan(here.seen, here.now).again_in is None


def test_a_stop_ends_every_process_first():
    here = training()
    here.seen = replace(here.seen, is_stopping=True)
    here.step()
    assert here.count(Halt) == 1
    assert here.seen.state is JobState.TRAINING
    here.work()
    here.step()
    assert here.seen.state is JobState.STOPPED


def test_a_stop_does_not_wait_for_ever():
    here = training()
    here.seen = replace(here.seen, is_stopping=True)
    here.step()
    here.now += timedelta(seconds=15)
    here.step()
    assert here.seen.state is JobState.STOPPED
    assert here.count(GiveUp) == 4


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.FORMING, JobState.TRAINING, JobState.RECOVERING])
def test_a_job_ends_with_its_cluster_whatever_it_was_doing(state):
    here = world()
    if state is not JobState.QUEUED:
        here.run(JobState.FORMING if state is JobState.FORMING else JobState.TRAINING)
    if state is JobState.RECOVERING:
        here.kill_rank(0)
        here.step()
    assert here.seen.state is state
    here.seen = replace(here.seen, cluster_is_going=True)
    here.step()
    assert here.seen.state is JobState.STOPPED


# ------------------------------------------------------------------ whatever happens


FAULTS = ("kill", "kill", "lose", "flap", "complain", "wait", "spare")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 7), st.integers(0, 3)), max_size=12), st.integers(1, 2))
def test_a_job_recovers_from_any_faults_as_long_as_somebody_holds_the_state(faults, per_node):
    """The world checks every publication: whole, distinct, everybody ready. Nodes that are lost come back as new ones."""
    here = training(nodes=5, replicas=3, spares=1, processes_per_node=per_node, max_restarts=100)
    fresh = iter(range(100, 200))
    for fault, which, rounds in faults:
        rank = which % here.seen.world_size
        holders = [
            one for one in here.seen.alive if one.reformed and one.node != here.rank(rank).node and here.node(one.node).serves
        ]
        node = here.rank(rank).node
        if fault == "kill" and holders and here.rank(rank).is_alive:
            here.kill_rank(rank)
        elif fault == "lose" and holders and node in here.seen.nodes:
            here.close_stream(node)
            here.complain((rank + per_node) % here.seen.world_size)
            here.step()
            here.release(node)
            here.add_node(f"new{next(fresh)}")
        elif fault == "flap" and node in here.seen.nodes and not here.seen.nodes[node].is_going:
            here.close_stream(node)
            here.look()
            here.open_stream(node)
        elif fault == "complain" and here.rank(rank).is_alive:
            here.complain(rank)
        elif fault == "spare":
            idle = [one for one in here.seen.alive if one.id not in here.seen.generation.members]
            if idle:
                here.exit(idle[0].id, signal=9)
        for _ in range(rounds):
            here.look()
            here.work()
            here.now += timedelta(seconds=0.5)
    here.run(JobState.TRAINING, rounds=400)
    members = [here.process(process) for process in here.seen.generation.members]
    assert all(process.is_alive for process in members)
    assert len({process.slot for process in members}) == here.seen.world_size


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_survivors_keep_their_ranks(data):
    here = training(nodes=8, replicas=4, spares=2)
    dead = data.draw(st.sets(st.integers(0, 3), min_size=1, max_size=2))
    before = here.seen.generation.members
    for rank in dead:
        here.kill_rank(rank)
    here.step()
    after = here.seen.generation.members
    assert [rank for rank in range(4) if before[rank] != after[rank]] == sorted(dead)
