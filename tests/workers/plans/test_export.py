from __future__ import annotations

from datetime import UTC, datetime, timedelta

from models.checkpoint.states import ExportState
from workers.plans.export import Begin, ExportSeen, Fail, Look, plan

NOW = datetime(2031, 5, 1, tzinfo=UTC)


def actions(state: ExportState = ExportState.WANTED, minutes: int = 0, **more) -> tuple:
    return plan(ExportSeen(state, NOW - timedelta(minutes=minutes), **more), NOW).actions


def test_an_export_waits_until_its_step_is_durable_and_then_begins():
    assert actions() == ()
    assert actions(is_durable=True) == (Begin(),)


def test_an_export_does_not_begin_while_the_store_is_out():
    assert actions(is_durable=True, is_store_out=True) == ()


def test_an_export_whose_step_does_not_become_durable_fails_in_the_end_and_says_so():
    assert actions(minutes=29) == ()
    (failed,) = actions(minutes=30)
    assert failed == Fail("its step has not become durable within 30 minutes")


def test_an_export_whose_step_is_dropped_before_it_begins_fails():
    assert actions(is_kept=False, is_durable=True) == (Fail("its step has been dropped"),)


def test_a_running_export_is_looked_at_until_it_has_ended():
    assert actions(ExportState.RUNNING) == (Look(),)
    assert plan(ExportSeen(ExportState.DONE, NOW), NOW).again_in is None
