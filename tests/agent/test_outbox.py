"""Reports on their way: in order, once, whatever is refused or gathered meanwhile."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agent import outbox as module
from agent.outbox import Outbox
from everstep.protocol import (
    BrokenReport,
    LogReport,
    ProcessReport,
    ProcessStatus,
    ProgressReport,
    Report,
    StepReport,
)
from everstep.tiers import CopiesReport, CopyStatus, CopyTold, DurableReport, SavedReport, TierReport


def exited(name: str) -> ProcessReport:
    return ProcessReport("j", name, ProcessStatus.EXITED, exit_code=0)


def progress(*steps: int, generation: int = 1) -> ProgressReport:
    return ProgressReport("j", generation, tuple(StepReport(step, 1.0, float(step)) for step in steps))


def drained(outbox: Outbox) -> list[tuple[int, Report]]:
    sent = []
    while batch := outbox.batch():
        sent += [(item.sequence, item.report) for item in batch]
        outbox.confirm()
    return sent


def test_an_unconfirmed_batch_is_sent_again_under_the_same_numbers():
    outbox = Outbox()
    outbox.put(exited("a"))
    first = list(outbox.batch())
    outbox.put(exited("b"))
    assert outbox.batch() == first
    outbox.confirm()
    assert [item.sequence for item in outbox.batch()] == [2]


def test_progress_is_gathered_and_exits_are_not():
    outbox = Outbox()
    for report in (progress(1), exited("a"), progress(2), exited("a"), progress(3, generation=2)):
        outbox.put(report)
    assert [report for _, report in drained(outbox)] == [progress(1, 2), exited("a"), exited("a"), progress(3, generation=2)]


def test_of_the_memory_tier_and_of_saves_the_newest_word_waits_and_nothing_that_was_evicted_is_forgotten():
    outbox = Outbox()
    for number, note in ((1, "evicted step 3"), (2, None), (3, "evicted step 4"), (4, "evicted step 4")):
        outbox.put(TierReport(number, 100, number, refusals=number, note=note))
    for step, why in ((10, "every 10: measured"), (20, None)):
        outbox.put(SavedReport("j", step, 0.1, 0.2, 1, why=why))
    outbox.put(SavedReport("k", 1, 0.1, 0.2, 1))
    told = [report for _, report in drained(outbox)]
    assert told == [
        TierReport(4, 100, 4, refusals=4, note="evicted step 3; evicted step 4"),
        SavedReport("j", 20, 0.1, 0.2, 1, why="every 10: measured"),
        SavedReport("k", 1, 0.1, 0.2, 1),
    ]


def test_of_a_step_s_copies_what_became_of_each_last_is_told_once():
    outbox = Outbox()
    sealed, dropped = CopyTold(0, CopyStatus.SEALED, 5, "aa"), CopyTold(0, CopyStatus.DROPPED, 5, "aa")
    other = CopyTold(2, CopyStatus.SEALED, 1, "bb")
    durable = DurableReport("ns", 7, 2, 11, 3.0, "s")
    reports = (
        CopiesReport("ns", 7, (sealed,), "s", at=1.0),
        CopiesReport("ns", 8, (sealed,), "t", at=1.5),
        CopiesReport("ns", 7, (other,), "s", world_size=2, at=2.0),
        durable,
        CopiesReport("ns", 7, (dropped,), "s", at=3.0),
    )
    for report in reports:
        outbox.put(report)
    told = [report for _, report in drained(outbox)]
    assert told == [CopiesReport("ns", 7, (dropped, other), "s", 2, 3.0), CopiesReport("ns", 8, (sealed,), "t", at=1.5), durable]


def test_progress_under_way_is_not_changed():
    outbox = Outbox()
    outbox.put(progress(1))
    outbox.batch()
    outbox.put(progress(2))
    assert [report for _, report in drained(outbox)] == [progress(1), progress(2)]


def test_too_many_steps_are_thinned_without_losing_a_second():
    outbox = Outbox()
    total = module.MOST_STEPS * 2
    for step in range(total):
        outbox.put(progress(step))
    steps = [step for _, report in drained(outbox) for step in report.steps]
    assert len(steps) <= module.MOST_STEPS
    assert sum(step.seconds for step in steps) == total
    assert [step.step for step in steps] == sorted({step.step for step in steps})
    assert steps[-1].step == total - 1


def test_a_log_is_kept_from_its_end_and_what_is_left_out_is_counted():
    outbox = Outbox()
    for _ in range(3):
        outbox.put(LogReport("j", "p", "x" * module.MOST_LOG))
    outbox.put(LogReport("j", "p", "end\n", skipped=5))
    [(_, report)] = drained(outbox)
    assert report.text.endswith("end\n")
    assert report.skipped + len(report.text) == 3 * module.MOST_LOG + 4 + 5


def test_a_collective_that_broke_is_told_once_a_process_and_generation():
    outbox = Outbox()
    for message in ("first", "second"):
        outbox.put(BrokenReport("j", 1, "p", message, 0.0))
    assert [report.message for _, report in drained(outbox)] == ["first"]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.sets(st.sampled_from("abcdefgh")), st.booleans())
def test_poison_is_dropped_and_all_the_rest_arrives_in_order_under_growing_numbers(names, poison, names_the_index):
    outbox = Outbox()
    for name in names:
        outbox.put(exited(name))
    stored: list[tuple[int, str]] = []
    while batch := outbox.batch():
        bad = next((at for at, item in enumerate(batch) if item.report.process in poison), None)
        if bad is None:
            stored += [(item.sequence, item.report.process) for item in batch]
            outbox.confirm()
        elif names_the_index:
            outbox.drop(bad)
        elif not outbox.split():
            outbox.drop(0)
    assert [name for _, name in stored] == [name for name in names if name not in poison]
    sequences = [sequence for sequence, _ in stored]
    assert sequences == sorted(set(sequences))


def test_an_urgent_report_does_not_wait_for_company():
    async def scenario() -> tuple[float, float]:
        outbox, clock = Outbox(), asyncio.get_running_loop().time
        outbox.put(exited("a"))
        began = clock()
        await outbox.wait()
        urgent = clock() - began
        drained(outbox)
        outbox.put(progress(1))
        began = clock()
        await outbox.wait()
        return urgent, clock() - began

    urgent, gathered = asyncio.run(scenario())
    assert urgent < module.GATHER_S / 2
    assert gathered >= module.GATHER_S * 0.9
