"""Jobs whose scripts know nothing of generations: each generation is made of new processes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import hypothesis.strategies as st
from hypothesis import given, settings

from models.job.elastic import ElasticPolicy
from models.job.states import JobState, ProcessState
from tests.workers.plans import job_world
from workers.plans.job_seen import CountRestarts, Elasticity, Form, GenerationSeen, GiveUp, Move, Publish, Start


class PlainWorld(job_world.World):
    """Agents hold what is wanted until nothing of the generation before is left on the node; members then run until something ends them."""

    busy: frozenset = frozenset()

    def work(self) -> None:
        for process in self.seen.processes:
            is_told = process.node not in self.busy and self.node(process.node).can_be_told
            if process.state is ProcessState.LOST and process.has_started and process.signal is None and is_told:
                self.change(process.id, signal=15)
        for process in self.seen.alive:
            node = self.node(process.node)
            if not node.can_be_told:
                continue
            if self.seen.halted_at is not None:
                self.exit(process.id, code=0)
            elif process.state is ProcessState.WANTED and process.node not in self.busy:
                self.change(process.id, state=ProcessState.READY, state_since=self.now)
            elif self.seen.generation and process.id in self.seen.generation.members:
                self.change(process.id, has_started=True)

    def _write(self, action) -> None:
        match action:
            case Form(number=number):
                newest = self.seen.generations[-1]
                assert newest.number == number
                self.seen = replace(
                    self.seen, generations=(*self.seen.generations[:-1], replace(newest, is_formed=True)), has_ever_formed=True
                )
            case Publish(members=members):
                fresh = {member for one in self.seen.generations for member in one.members}
                assert not fresh & set(members), "a plain process is a member of one generation"
                assert len(members) == self.seen.world_size == len(set(members))
                assert all(self.process(member).state is ProcessState.READY for member in members)
                alive = [member for one in self.seen.generations for member in one.members if self.process(member).is_alive]
                assert not alive, "no two generations run at the same time"
                newest = GenerationSeen(len(self.seen.generations) + 1, members, self.now, is_formed=False)
                self.seen = replace(self.seen, generations=(*self.seen.generations, newest))
            case _:
                super()._write(action)

    def run_for(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            self.look()
            self.work()
            self.now += timedelta(seconds=0.5)

    def whys(self) -> list[str]:
        return [action.why for action in self.taken if isinstance(action, Move)]


def world(*, nodes: int = 3, replicas: int = 2, **more) -> PlainWorld:
    made = job_world.world(nodes=nodes, replicas=replicas, **({"spares": 0, "is_plain": True} | more))
    return PlainWorld(made.seen)


def training(**more) -> PlainWorld:
    made = world(**more)
    made.run(JobState.TRAINING)
    made.run_for(2)
    assert made.seen.generation.is_formed
    return made


def test_a_generation_is_published_only_of_processes_that_are_held_ready():
    seen = world(processes_per_node=2)
    seen.look()
    assert seen.count(Publish) == 0
    seen.run(JobState.TRAINING)
    assert [(seen.rank(rank).node, seen.rank(rank).local_rank) for rank in range(4)] == [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]


def test_all_ranks_leaving_with_exit_code_zero_is_success():
    seen = training()
    seen.exit(seen.rank(0).id, code=0)
    seen.look()
    assert seen.seen.state is JobState.TRAINING
    seen.exit(seen.rank(1).id, code=0)
    seen.look()
    assert seen.seen.state is JobState.SUCCEEDED


def test_a_rank_that_does_not_come_to_its_end_is_named_and_left_alone():
    """It may write results, or hang in the end of its process group: only its user can know."""
    seen = training()
    seen.exit(seen.rank(0).id, code=0)
    seen.look()
    assert "waits for the end" not in (seen.seen.why or "")
    seen.run_for(12)
    late = seen.rank(1).id
    assert seen.seen.why == f"1 of 2 processes have ended with exit code 0; waits for the end of rank 1 (process {late})."
    seen.run_for(600)
    assert seen.process(late).is_alive
    seen.exit(late, code=0)
    seen.look()
    assert seen.seen.state is JobState.SUCCEEDED


def test_a_killed_rank_ends_its_generation_and_costs_no_restart():
    seen = training()
    before = seen.seen.generation
    seen.kill_rank(1)
    actions = seen.step()
    kinds = [type(action) for action in actions]
    assert kinds.index(Move) < kinds.index(GiveUp) < kinds.index(Start)
    assert not any(process.is_alive for process in map(seen.process, before.members))
    seen.run(JobState.TRAINING)
    assert seen.seen.generation.number == 2
    assert seen.seen.restarts == 0
    assert {seen.process(one).node for one in seen.seen.generation.members} == {"n0", "n1"}


def test_a_failed_rank_counts_one_restart_however_many_fail_with_it():
    seen = training(nodes=2)
    seen.fail_rank(1)
    seen.now += timedelta(seconds=0.1)
    seen.fail_rank(0, "RuntimeError: connection closed by peer")
    seen.look()
    assert seen.seen.restarts == 1
    assert "rank 1 (exited with code 1)" in seen.whys()[-1]
    assert seen.count(CountRestarts) == 1


def test_a_failure_that_follows_a_kill_within_a_moment_is_no_fault():
    seen = training()
    seen.fail_rank(0, "RuntimeError: connection closed by peer")
    seen.look()
    assert seen.seen.state is JobState.TRAINING, "its cause may be told in a moment"
    seen.kill_rank(1)
    seen.look()
    assert seen.seen.state is JobState.RECOVERING
    assert seen.seen.restarts == 0


def test_a_failure_beside_a_node_that_is_silent_is_no_fault():
    seen = training()
    lost = seen.rank(1).node
    seen.close_stream(lost)
    seen.fail_rank(0, "RuntimeError: connection closed by peer")
    seen.look()
    assert seen.seen.restarts == 0
    seen.run(JobState.TRAINING)
    assert lost not in {seen.process(one).node for one in seen.seen.generation.members}


def test_a_lone_failure_is_acted_on_after_a_moment():
    seen = training()
    seen.fail_rank(0)
    seen.look()
    assert seen.seen.state is JobState.TRAINING
    seen.now += seen.seen.patience.fault
    seen.look()
    assert (seen.seen.state, seen.seen.restarts) == (JobState.RECOVERING, 1)


def test_a_crash_loop_ends_with_the_traceback_of_the_first_failing_rank():
    seen = training(max_restarts=2, nodes=2)
    for number in range(3):
        seen.fail_rank(1, f"ValueError: attempt {number}")
        seen.now += timedelta(seconds=0.1)
        seen.fail_rank(0, "RuntimeError: connection closed by peer")
        seen.look()
        if number < 2:
            seen.run(JobState.TRAINING)
            seen.run_for(1)
    assert seen.seen.state is JobState.FAILED
    assert seen.seen.restarts == 3
    assert seen.whys()[-1].startswith(
        "Rank 1 of generation 3 failed first, and its max_restarts (2) are used up.\nValueError: attempt 2"
    )


def test_each_quick_end_in_a_row_makes_the_next_start_wait_longer():
    seen = training(max_restarts=100)
    waits = []
    for _ in range(7):
        seen.kill_rank(0)
        began = seen.now
        seen.run(JobState.TRAINING, rounds=300)
        waits.append((seen.now - began).total_seconds())
        seen.run_for(1)
    assert waits == sorted(waits)
    assert waits[0] <= 1
    assert waits[-1] >= 15


def test_a_generation_that_lasted_is_followed_at_once():
    seen = training(max_restarts=100)
    for _ in range(4):
        seen.run_for(61)
        seen.kill_rank(0)
        began = seen.now
        seen.run(JobState.TRAINING)
        assert (seen.now - began).total_seconds() <= 1


def test_who_is_killed_again_and_again_at_once_fails_with_a_guess_why():
    seen = training()
    for _ in range(10):
        seen.kill_rank(0)
        seen.look()
        if seen.seen.state is JobState.FAILED:
            break
        seen.run(JobState.TRAINING, rounds=300)
        seen.run_for(1)
    assert seen.seen.state is JobState.FAILED
    assert "is there enough memory?" in seen.whys()[-1]
    assert len(seen.seen.generations) == 10


def test_a_lost_node_is_replaced_by_a_spare_that_is_held_ready():
    seen = training(nodes=3, spares=1)
    seen.run_for(2)
    seen.release(seen.rank(0).node)
    seen.look()
    seen.run(JobState.TRAINING)
    assert {seen.process(one).node for one in seen.seen.generation.members} == {"n1", "n2"}
    assert seen.seen.restarts == 0


def test_the_next_generation_waits_until_the_one_before_has_left_its_nodes():
    seen = training(nodes=2)
    seen.busy = frozenset({"n0"})
    seen.kill_rank(1)
    seen.run_for(8)
    assert seen.seen.state is JobState.RECOVERING
    seen.busy = frozenset()
    seen.run(JobState.TRAINING)


def test_it_waits_also_for_nodes_that_it_has_no_more_use_for():
    seen = training(nodes=4, replicas=2, spares=2)
    seen.run_for(3)
    seen.busy = frozenset({"n0", "n1"})
    for node in ("n0", "n1"):
        seen.change_node(node, leave_why="spot notice", leave_by=seen.now + timedelta(seconds=120))
    seen.run_for(4)
    assert (seen.seen.state, len(seen.seen.generations)) == (JobState.RECOVERING, 1)
    assert "leaves its nodes" in seen.seen.why
    seen.busy = frozenset()
    seen.run(JobState.TRAINING)
    assert {seen.process(one).node for one in seen.seen.generation.members} == {"n2", "n3"}


def test_nobody_is_given_up_for_not_starting_while_the_one_before_takes_its_grace():
    seen = training(nodes=2, grace=timedelta(seconds=300))
    seen.busy = frozenset({"n0"})
    seen.kill_rank(1)
    seen.run_for(200)
    held = [process for process in seen.seen.alive if process.node == "n0"]
    assert [process.state for process in held] == [ProcessState.WANTED]
    assert sum(process.node == "n0" for process in seen.seen.processes) == 2


def test_a_node_that_is_to_be_left_is_left_when_another_is_ready():
    seen = training(nodes=2)
    seen.change_node("n1", leave_why="spot notice", leave_by=seen.now + timedelta(seconds=120))
    seen.run_for(3)
    assert seen.seen.state is JobState.TRAINING
    assert len(seen.seen.generations) == 1, "without another node the script works on"
    seen.add_node("n9")
    seen.run_for(3)
    assert {seen.process(one).node for one in seen.seen.generation.members} == {"n0", "n9"}
    assert seen.seen.restarts == 0


def elastic(wish: int, *sizes: int) -> Elasticity:
    return Elasticity(ElasticPolicy(sizes, faulty=timedelta(seconds=10), scaling=timedelta(seconds=5)), wish)


def test_a_command_to_be_smaller_ends_the_generation_and_starts_a_smaller_one():
    seen = training(nodes=4, replicas=4, elastic=elastic(4, 1, 2, 4))
    seen.change_seen(elastic=elastic(2, 1, 2, 4))
    seen.look()
    assert seen.seen.state is JobState.RESIZING
    seen.run(JobState.TRAINING)
    assert len(seen.seen.generation.members) == 2
    seen.run_for(3)
    assert len(seen.seen.alive) == 2, "what is not needed is given back"


def test_a_job_without_its_node_goes_on_smaller_after_its_patience_and_grows_again():
    seen = training(nodes=2, elastic=elastic(2, 1, 2))
    seen.release("n1")
    seen.look()
    assert (seen.seen.state, seen.seen.awaits) == (JobState.RECOVERING, 1)
    seen.run_for(9)
    assert seen.seen.state is JobState.RECOVERING
    seen.run_for(4)
    assert (seen.seen.state, len(seen.seen.generation.members)) == (JobState.TRAINING, 1)
    seen.change_seen(awaits=0, awaits_since=None)
    seen.add_node("n9")
    seen.run_for(10)
    assert len(seen.seen.generation.members) == 2


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["kill", "fail", "lose", "mute", "hear", "add", "wait"]), st.integers(0, 3)), max_size=14),
    st.integers(0, 1),
)
def test_whatever_happens_no_two_generations_overlap_and_calm_brings_training(events, spares):
    seen = world(nodes=4, replicas=2, processes_per_node=2, spares=spares, max_restarts=50)
    seen.run(JobState.TRAINING)
    for kind, which in events:
        if seen.seen.state is JobState.FAILED:
            return
        if kind in ("kill", "fail") and seen.rank(which).is_alive:
            (seen.kill_rank if kind == "kill" else seen.fail_rank)(which)
        elif kind == "lose" and sum(node.serves for node in seen.seen.nodes.values()) > 2:
            seen.release(f"n{which}")
        elif kind in ("mute", "hear"):
            (seen.close_stream if kind == "mute" else seen.open_stream)(f"n{which}")
        elif kind == "add":
            seen.add_node(f"x{len(seen.seen.nodes)}")
        seen.run_for(which + 0.5)
    for number in range(4):
        seen.open_stream(f"n{number}")
    for number in range(2):
        seen.add_node(f"y{number}")
    seen.run_for(150)
    assert seen.seen.state in (JobState.TRAINING, JobState.FAILED)
    if seen.seen.state is JobState.TRAINING:
        assert all(seen.process(member).is_alive for member in seen.seen.generation.members)
