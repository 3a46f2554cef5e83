from __future__ import annotations

import threading

from everstep.resilience.effort import Effort
from everstep.resilience.place import Place
from everstep.resilience.vitals import Vitals, stacks


def vitals(after_s: float = 1.0) -> Vitals:
    return Vitals(Place(generation=2, step=7), lambda: False, after_s=after_s)


def test_a_pulse_says_where_the_process_stands_and_nothing_of_stacks_while_all_is_well():
    one = vitals()
    one.pace.begin(100.0)
    assert one.pulse(100.5) == {"generation": 2, "step": 7, "seconds": 0.5, "limit_s": 10.0}


def test_a_pulse_tells_the_stack_when_the_limit_has_passed_soon_again_and_whenever_that_has_doubled():
    one = vitals()
    one.pace.begin(100.0)
    told = [second for second in range(100, 160) if "stack" in one.pulse(float(second))]
    assert told == [111, 113, 115, 120, 140]
    assert "stack" in [one.pulse(float(second)) for second in range(160, 200)][20]


def test_a_rank_that_begins_to_wait_after_its_limit_says_so_at_once():
    waits = False
    one = Vitals(Place(generation=2, step=7), lambda: waits, after_s=1.0)
    one.pace.begin(100.0)
    told = [one.pulse(float(second)) for second in range(100, 130)]
    assert told[-1].get("is_waiting") is None
    waits = True
    assert one.pulse(130.0)["is_waiting"] is True
    assert "is_waiting" not in one.pulse(131.0)


def test_progress_ends_a_hang_and_the_next_one_is_told_anew():
    one = vitals()
    one.pace.begin(100.0)
    assert "stack" in [list(one.pulse(float(second))) for second in range(100, 112)][-1]
    one.pace.committed(111.5)
    assert "stack" not in one.pulse(112.0)
    assert [second for second in range(113, 132) if "stack" in one.pulse(float(second))] == [122, 124, 127]


def test_time_in_which_the_process_itself_stood_still_makes_nobody_hang():
    one = vitals()
    one.pace.begin(100.0)
    one.pulse(100.0)
    assert "stack" not in one.pulse(400.0)
    assert one.pulse(401.0)["seconds"] == 2.0


def test_work_beside_the_steps_has_a_limit_of_its_own():
    one = vitals()
    with one.aside(limit_s=5000.0):
        assert one.pulse()["limit_s"] == 5000.0
    assert one.pulse()["limit_s"] == 10.0


def test_stacks_begin_with_the_thread_that_trains_and_end_with_where_it_is():
    entered, leave = threading.Event(), threading.Event()

    def train_for_ever() -> None:
        entered.set()
        leave.wait()

    thread = threading.Thread(target=train_for_ever, name="the one")
    thread.start()
    entered.wait()
    said = stacks(thread.ident or 0)
    leave.set()
    thread.join()
    assert said.startswith("Thread the one (it trains):")
    assert "in train_for_ever" in said.split("\nThread ")[0]


def test_a_ranks_effort_leaves_out_what_it_waits_for_and_what_comes_after_its_last_collective():
    effort = Effort()
    effort.begin()
    began = effort._began
    effort._launched, effort._waited_before = began + 3.0, 1.25
    effort.waited(50.0)
    assert effort.seconds() == 1.75


def test_waits_of_other_threads_are_nobodys_effort():
    effort = Effort()
    effort.begin()
    other = threading.Thread(target=lambda: effort.waited(50.0))
    other.start()
    other.join()
    effort.launched()
    assert effort.seconds() < 40.0
    assert effort._waited_before == 0.0
