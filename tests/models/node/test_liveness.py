from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from models.node.liveness import BEATS_PER_S, beat_interval, suspicious_silence


def test_a_small_cluster_beats_once_a_second_and_is_suspected_after_six():
    assert beat_interval(4) == timedelta(seconds=1)
    assert suspicious_silence(4) == timedelta(seconds=6)


@given(st.integers(0, 1_000_000))
def test_however_many_agents_there_are_they_beat_no_faster_than_can_be_taken(population):
    assert population / beat_interval(population).total_seconds() <= BEATS_PER_S * 1.001


@given(st.integers(0, 1_000_000))
def test_no_agent_is_suspected_before_it_has_missed_three_beats(population):
    assert suspicious_silence(population) >= 3 * beat_interval(population)
