from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from everstep.tiers import Retention
from models.checkpoint.states import StepState
from workers.plans.checkpoint import Leave, Nudge, Remove, Retire, StepSeen, plan
from workers.plans.durable_retention import DurableStep

NOW = datetime(2031, 5, 1, tzinfo=UTC)


def durable(*steps: int, held: tuple[int, ...] = ()) -> tuple[DurableStep, ...]:
    return tuple(DurableStep(step, 10, NOW - timedelta(minutes=100 - step), is_held=step in held) for step in steps)


def seen(step: int, **more) -> StepSeen:
    return StepSeen(
        **({"step": step, "state": StepState.KEPT, "durable": durable(10, 20, 30), "retention": Retention(last=2)} | more)
    )


def test_a_step_that_the_store_keeps_no_longer_and_nobody_holds_in_memory_is_retired_everywhere():
    (action,) = plan(seen(10), NOW).actions
    assert isinstance(action, Retire)
    assert "not one of the 2 newest" in action.why


def test_a_step_that_is_still_in_memory_leaves_the_store_alone():
    (action,) = plan(seen(10, is_in_memory=True), NOW).actions
    assert isinstance(action, Leave)


def test_the_newest_durable_step_asks_those_to_look_that_are_kept_no_longer():
    (action,) = plan(seen(30), NOW).actions
    assert action == Nudge((10,), "a newer step is durable")
    assert plan(seen(20), NOW).actions == ()


def test_a_step_in_memory_alone_is_the_nodes_own_business():
    decision = plan(seen(40, is_in_memory=True), NOW)
    assert decision.actions == ()
    assert decision.again_in is None


def test_a_step_that_will_be_too_old_is_looked_at_just_then():
    keep = Retention(max_age_s=timedelta(minutes=95).total_seconds())
    assert plan(seen(20, retention=keep), NOW).again_in == timedelta(minutes=5)


def test_a_dropped_step_is_removed_again_and_again_until_the_store_has_answered():
    decision = plan(seen(10, state=StepState.DROPPING, durable=()), NOW)
    assert [type(action) for action in decision.actions] == [Remove]
    assert decision.again_in is not None
    assert plan(seen(10, state=StepState.DROPPED), NOW).actions == ()


def test_nothing_is_removed_while_an_export_reads_it_or_the_store_is_out():
    for why in ({"is_read": True}, {"is_store_out": True}):
        for one in (seen(10, state=StepState.DROPPING, **why), seen(10, is_in_memory=True, **why)):
            decision = plan(one, NOW)
            assert decision.actions == ()
            assert decision.again_in is not None


@given(
    st.sets(st.integers(0, 60), min_size=1, max_size=10),
    st.sets(st.integers(0, 60), max_size=3),
    st.builds(
        Retention,
        last=st.none() | st.integers(1, 4),
        every=st.none() | st.integers(1, 20),
        max_bytes=st.none() | st.integers(0, 80),
    ),
)
def test_all_steps_of_a_namespace_come_to_rest_and_what_must_stay_stays(steps, held, keep):
    present = durable(*sorted(steps), held=tuple(held))
    for _ in range(len(steps) + 1):
        gone = [
            one.step
            for one in present
            if any(isinstance(a, Retire) for a in plan(seen(one.step, durable=present, retention=keep), NOW).actions)
        ]
        present = tuple(one for one in present if one.step not in gone)
    assert not gone
    left = {one.step for one in present}
    assert max(steps) in left
    assert steps & held <= left


@given(st.sampled_from(list(StepState)), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([10, 20, 30, 99]))
def test_the_newest_durable_step_is_never_taken_from_the_store_while_it_is_kept(state, in_memory, read, out, step):
    one = seen(
        step,
        state=state,
        is_in_memory=in_memory,
        is_read=read,
        is_store_out=out,
        retention=Retention(last=1, max_bytes=0, max_age_s=0.1),
    )
    actions = plan(one, NOW).actions
    if step in (30, 99) and state is StepState.KEPT:
        assert not [action for action in actions if isinstance(action, Retire | Leave | Remove)]
    if read or out:
        assert not [action for action in actions if isinstance(action, Leave | Remove)]
    assert plan(replace(one), NOW).actions == actions
