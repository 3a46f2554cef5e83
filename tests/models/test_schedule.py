from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import Invalid
from models.schedule import check_schedule, next_time

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "cron, first",
    [
        ("0 2 ? * SUN *", datetime(2031, 5, 4, 2, 0, tzinfo=UTC)),
        ("0/15 * * * ? *", datetime(2031, 5, 1, 12, 15, tzinfo=UTC)),
        ("0 12 * * ? *", datetime(2031, 5, 2, 12, 0, tzinfo=UTC)),
        ("30 3 L * ? 2032", datetime(2032, 1, 31, 3, 30, tzinfo=UTC)),
        ("0 0 ? * 6#3 *", datetime(2031, 5, 16, 0, 0, tzinfo=UTC)),
        ("0 0 29 FEB ? *", datetime(2032, 2, 29, 0, 0, tzinfo=UTC)),
    ],
)
def test_the_next_time_of_a_schedule_comes_after_now(cron, first):
    assert next_time(f"cron({cron})", NOW) == first


@pytest.mark.parametrize(
    "expression",
    [
        "cron()",
        "cron(0 0 * * * *)",
        "rate(1 day)",
        "0 2 ? * SUN *",
        "cron(61 0 * * ? *)",
        "cron(0 0 LW * ? *)",
        "cron(a b c d e f)",
    ],
)
def test_what_is_no_schedule_is_refused_with_its_place(expression):
    with pytest.raises(Invalid, match=r"^Here: '.*' is no cron\(minute hour"):
        next_time(expression, NOW, where="Here")


@pytest.mark.parametrize("cron", ["0 0 1 1 ? 2020", "0 0 30 2 ? *"])
def test_a_time_that_never_comes_is_refused(cron):
    with pytest.raises(Invalid, match="names no time that is still to come"):
        check_schedule(f"cron({cron})", where="Here", now=NOW)


@given(st.text(alphabet="0123456789*?/-,LW# SUNMONFEB", max_size=40))
def test_no_expression_does_worse_than_to_be_refused(text):
    try:
        found = next_time(f"cron({text})", NOW)
    except Invalid:
        return
    assert found is None or found > NOW
