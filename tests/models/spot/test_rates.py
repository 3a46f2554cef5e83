from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from models.spot.rates import HALF_LIFE, USUAL_PER_HOUR, Band, band, observe

NOW = datetime(2031, 5, 1, tzinfo=UTC)


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def test_a_type_of_which_nothing_was_seen_has_the_usual_rate():
    assert observe([], [], NOW).per_hour == pytest.approx(USUAL_PER_HOUR)


def test_what_happened_a_half_life_ago_counts_half():
    assert observe([(NOW - HALF_LIFE, 1.0)], [], NOW).interruptions == pytest.approx(0.5)
    assert observe([(NOW, 0.25)], [], NOW).interruptions == pytest.approx(0.25)


def test_recent_hours_count_almost_whole_and_old_ones_hardly():
    assert observe([], [(ago(1), NOW)], NOW).hours == pytest.approx(1, rel=0.01)
    assert observe([], [(ago(24 * 30), ago(24 * 29))], NOW).hours < 0.1


def test_splitting_a_hosts_life_changes_no_rate():
    whole = observe([], [(ago(50), ago(3))], NOW).hours
    assert observe([], [(ago(50), ago(20)), (ago(20), ago(3))], NOW).hours == pytest.approx(whole)


def test_a_type_that_is_taken_again_and_again_is_in_a_worse_band_than_one_that_stays():
    bad = observe([(ago(hour / 5), 1.0) for hour in range(25)], [(ago(5), NOW)], NOW)
    good = observe([], [(ago(100), NOW)], NOW)
    assert band(good.per_hour) is Band.LOW
    assert band(bad.per_hour) is Band.HIGH
