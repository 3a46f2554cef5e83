"""When a group's software is updated by itself. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from workers.plans.patching import NOTICE, Kept, Seen, look

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)
NIGHTLY = {"ScheduledUpdateConfig": {"ScheduleExpression": "cron(0 3 * * ? *)", "DeploymentConfig": {"WaitIntervalInSeconds": 5}}}
NIGHT = datetime(2031, 5, 2, 3, 0, tzinfo=UTC)


def patched(strategy: str, **members) -> dict:
    return {"AutoPatchConfig": {"PatchingStrategy": strategy, **members}}


def seen(spec: dict, newer: str | None = "1.1.0", **changes) -> Seen:
    return replace(Seen(spec, Kept(), newer), **changes)


def later(first: Seen, now: datetime) -> Seen:
    """The same group at its next look, having kept what the first concluded."""
    return replace(first, kept=Kept.read(look(first, now).kept.write()))


def test_a_schedule_starts_an_update_at_its_time_and_not_again_before_the_next():
    first = seen(NIGHTLY)
    assert look(first, NOW).kept.due_at == NIGHT
    waiting = later(first, NOW)
    assert look(waiting, NIGHT - timedelta(seconds=1)).start is None
    due = look(waiting, NIGHT + timedelta(minutes=7))
    assert (due.start.image, due.start.deployment) == ("1.1.0", {"WaitIntervalInSeconds": 5})
    assert due.kept.due_at == NIGHT + timedelta(days=1)


def test_a_time_without_a_newer_release_passes_and_one_that_cannot_start_waits():
    waiting = later(seen(NIGHTLY), NOW)
    nothing_new = look(replace(waiting, newer=None), NIGHT)
    assert (nothing_new.start, nothing_new.kept.due_at) == (None, NIGHT + timedelta(days=1))
    busy = look(replace(waiting, may_start=False), NIGHT)
    assert (busy.start, busy.kept.due_at) == (None, NIGHT)


def test_another_expression_counts_from_the_moment_it_is_seen():
    hourly = {"ScheduledUpdateConfig": {"ScheduleExpression": "cron(0 * * * ? *)"}}
    changed = look(replace(later(seen(NIGHTLY), NOW), spec=hourly), NOW)
    assert changed.kept.due_at == NOW + timedelta(hours=1)
    assert look(replace(later(seen(NIGHTLY), NOW), spec={}), NOW).kept == Kept()


def test_patching_begins_a_day_after_a_newer_release_was_seen():
    first = seen(patched("WhenIdle"))
    assert look(replace(first, newer=None), NOW).kept == Kept()
    assert look(first, NOW).kept.patch_at == NOW + NOTICE
    assert look(later(first, NOW), NOW + NOTICE - timedelta(seconds=1)).start is None
    assert look(later(first, NOW), NOW + NOTICE).start.image == "1.1.0"


def test_the_callers_date_is_used_once_and_moves_what_was_set():
    date = NOW + timedelta(hours=3)
    spec = patched("WhenIdle", PatchSchedule={"NextPatchDate": date.isoformat()})
    first = later(seen(patched("WhenIdle")), NOW)
    moved = replace(first, spec=spec)
    begun = look(moved, date)
    assert begun.start is not None
    again = look(replace(moved, kept=begun.kept, newer="1.2.0"), date + timedelta(hours=1))
    assert (again.start, again.kept.patch_at) == (None, date + timedelta(hours=1) + NOTICE)


@pytest.mark.parametrize(
    "strategy, members, treatment",
    [
        (
            "WhenIdle",
            {"IdleWaitWindowInSeconds": 3600},
            {"waits_for_idle": True, "as_one": False, "until": (NOW + timedelta(hours=1)).isoformat()},
        ),
        ("WhenAllIdle", {}, {"waits_for_idle": True, "as_one": True, "until": (NOW + timedelta(days=1)).isoformat()}),
        ("DrainFirst", {}, {"drain_s": 3600, "is_forced": False}),
        (
            "DrainFirst",
            {"DrainPolicy": {"DrainTimeoutInSeconds": 60, "OnDrainTimeout": "Force"}},
            {"drain_s": 60, "is_forced": True},
        ),
    ],
)
def test_each_strategy_treats_nodes_with_work_in_its_own_way(strategy, members, treatment):
    spec = patched(strategy, PatchSchedule={"NextPatchDate": NOW.isoformat()}, **members)
    assert look(seen(spec), NOW).start.patching == treatment
