"""Where the time of a job's accelerators went: exact whatever the history, and what each account is for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from models.job.ledger import ACCOUNTS, Account, Books, Done, History, Holding, Membership, Tally, book, course

S = 1_000_000
NODES = ("a", "b", "c", "d")

times = st.integers(0, 1_000)
maybe = st.none() | times
done = st.builds(Done, times, st.integers(0, 100), st.integers(0, 120))
memberships = st.builds(
    Membership,
    nodes=st.frozensets(st.sampled_from(NODES)),
    decided=times,
    evidence=maybe,
    asked=maybe,
    complete=maybe,
    grouped=maybe,
    resumed=maybe,
    is_anew=st.booleans(),
    is_rescale=st.booleans(),
    is_kept=st.booleans(),
    steps_lost=st.integers(0, 3),
    tally=st.lists(done, max_size=4).map(Tally.of),
)
holdings = st.builds(Holding, st.sampled_from(NODES), times, maybe, st.integers(1, 8))
histories = st.builds(
    History, st.lists(holdings, max_size=6).map(tuple), st.lists(memberships, max_size=6).map(tuple), maybe, maybe
)


def held(history: History, now: int) -> int:
    """What the accounts must sum to, told from the holdings alone."""
    ends = [(one, now if one.until is None else min(one.until, now)) for one in history.holdings]
    return sum(one.weight * max(0, end - one.since) for one, end in ends)


@settings(max_examples=400, deadline=None)
@given(histories, times)
def test_the_accounts_sum_to_the_time_held_exactly_whatever_the_history_says(history: History, now: int):
    found = book(history, now)
    assert sum(found.accounts) == held(history, now)
    assert min(found.accounts) >= 0


@settings(max_examples=200, deadline=None)
@given(histories, times, st.integers(0, 300))
def test_a_course_has_no_gap_and_no_moment_twice(history: History, start: int, length: int):
    spans = course(history, start, start + length, start + length)
    edges = [start, *(span.until for span in spans)]
    assert [span.since for span in spans] == edges[:-1]
    assert edges[-1] == start + length
    assert all(span.until > span.since for span in spans)


@settings(max_examples=100, deadline=None)
@given(st.lists(done, max_size=8), st.data())
def test_steps_booked_one_by_one_in_any_order_are_those_booked_at_once(steps: list[Done], data: st.DataObject):
    order = data.draw(st.permutations(steps))
    cut = data.draw(st.integers(0, len(order)))
    one_by_one = sum((Tally.of([step]) for step in order), Tally())
    assert one_by_one == Tally.of(order[:cut]) + Tally.of(order[cut:]) == Tally.of(steps)


@settings(max_examples=200, deadline=None)
@given(histories, times, times)
def test_time_that_passes_adds_to_the_books_what_has_passed_and_no_more(history: History, now: int, later: int):
    """Reading live changes nothing: the books at a later moment differ by the time held between the two."""
    now, later = sorted((now, later))
    assert book(history, later).held - book(history, now).held == held(history, later) - held(history, now)


# ------------------------------------------------------------------------------------------------------------ what goes where


def steps(first_s: float, count: int, *, each_s: float = 1.0, stall_s: float = 0.0) -> Tally:
    return Tally.of(
        Done(round((first_s + (index + 1) * each_s) * S), round(each_s * S), round(stall_s * S)) for index in range(count)
    )


TWO = frozenset({"a", "b"})
FIRST = Membership(
    TWO, decided=5 * S, asked=0, complete=2 * S, grouped=6 * S, resumed=7 * S, is_anew=False, tally=steps(7, 10, stall_s=0.1)
)
BOTH = (Holding("a", 0), Holding("b", 0))


def seconds(found: Books) -> dict[str, float]:
    return {account.value: found.of(account) / S for account in ACCOUNTS if found.of(account)}


def test_a_job_that_trains_has_initialised_and_then_been_productive_between_stalls():
    found = book(History(BOTH, (FIRST,)), 17 * S)
    assert seconds(found) == {"waiting_for_capacity": 4.0, "initialising": 10.0, "productive": 18.0, "checkpoint_stall": 2.0}
    assert found.goodput == 18 / 34


def test_the_step_under_way_is_productive_as_long_as_a_step_usually_takes():
    half = book(History(BOTH, (FIRST,)), 17 * S + S // 2)
    assert half.of(Account.PRODUCTIVE) == 19 * S
    long_after = book(History(BOTH, (FIRST,)), 30 * S)
    assert (long_after.of(Account.PRODUCTIVE), long_after.of(Account.IDLE)) == (20 * S, 24 * S)


def test_a_fault_is_told_as_redone_work_detection_decision_reform_and_transfer():
    spare = (*BOTH[:1], Holding("b", 0, 20 * S), Holding("c", 0))
    second = Membership(
        frozenset({"a", "c"}),
        decided=21 * S,
        evidence=20 * S,
        asked=0,
        complete=0,
        grouped=23 * S,
        resumed=24 * S,
        tally=steps(24, 6),
    )
    found = seconds(book(History(spare, (FIRST, second)), 30 * S))
    assert found.pop("spare") == 16.0, "c held no rank from the first membership to the second"
    assert (found["redone_work"], found["detect"], found["decide"]) == (2.0, 4.0, 1.0), "a and b, and b was gone with the evidence"
    assert (found["reform"], found["transfer"], found["productive"]) == (4.0, 2.0, 30.0)


def test_steps_that_are_lost_are_redone_work_until_the_first_new_one_begins():
    anew = replace(FIRST, decided=20 * S, evidence=19 * S, grouped=21 * S, resumed=22 * S, steps_lost=3, tally=Tally())
    both = History(BOTH, (FIRST, anew))
    assert book(both, 24 * S).of(Account.REDONE_WORK) == 2 * (1 + 2) * S, "the broken step, and two seconds so far"
    known = replace(both, memberships=(FIRST, replace(anew, tally=steps(25, 2))))
    assert book(known, 27 * S).of(Account.REDONE_WORK) == 2 * (1 + 3) * S


def test_a_planned_change_of_size_is_a_rescale_and_the_newcomer_initialises_meanwhile():
    grown = Membership(
        TWO | {"c"},
        decided=17 * S,
        asked=12 * S,
        complete=12 * S,
        grouped=18 * S,
        resumed=19 * S,
        is_rescale=True,
        tally=steps(19, 1),
    )
    found = seconds(book(History((*BOTH, Holding("c", 12 * S)), (FIRST, grown)), 20 * S))
    assert (found["rescale"], found["initialising"], found.get("spare")) == (6.0, 10.0 + 5.0, None)
    assert found["productive"] == 18.0 + 3.0


def test_survivors_that_wait_for_a_new_node_wait_for_capacity_until_it_is_asked_to_start():
    late = Membership(
        frozenset({"a", "c"}), decided=40 * S, evidence=18 * S, asked=30 * S, complete=30 * S, grouped=41 * S, resumed=42 * S
    )
    found = seconds(book(History((BOTH[0], Holding("b", 0, 18 * S), Holding("c", 30 * S)), (FIRST, late)), 42 * S))
    assert found["waiting_for_capacity"] == 4.0 + 12.0
    assert found["initialising"] == 10.0 + 2 * 10.0


def test_a_step_that_the_next_membership_finished_was_not_done_in_vain():
    second = Membership(TWO, decided=18 * S, evidence=18 * S, grouped=19 * S, resumed=19 * S, is_kept=True)
    assert book(History(BOTH, (FIRST, second)), 19 * S).of(Account.REDONE_WORK) == 0


def test_accelerators_count_by_the_node_and_what_follows_the_end_is_idle():
    found = book(History((Holding("a", 0, 20 * S, 8), Holding("b", 0, 18 * S, 8)), (FIRST,), ended=17 * S), 99 * S)
    assert found.held == 8 * 38 * S
    assert seconds(found)["idle"] == 8 * 4.0
    assert found.productive_elapsed == 9 * S


def test_a_job_that_waits_for_its_first_nodes_waits_and_one_that_holds_none_has_no_goodput():
    assert seconds(book(History(BOTH[:1]), 3 * S)) == {"waiting_for_capacity": 3.0}
    assert seconds(book(History(BOTH, complete=S), 3 * S)) == {"waiting_for_capacity": 2.0, "initialising": 4.0}
    assert book(History(), 3 * S).goodput is None
