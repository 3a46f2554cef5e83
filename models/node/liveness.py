"""How often agents beat, and after how long a silence they are suspected. Pure; the agents' door and the workers must agree on it."""

from __future__ import annotations

from datetime import timedelta

BEATS_PER_S = 1_000
"""What the control plane takes from all agents together; with more of them, each beats more slowly."""
_SHORTEST = timedelta(seconds=1)
_MISSED = 3
_LEAST_SILENCE = timedelta(seconds=6)


def beat_interval(population: int) -> timedelta:
    return max(_SHORTEST, timedelta(seconds=population / BEATS_PER_S))


def suspicious_silence(population: int) -> timedelta:
    """Three beats missed, and never so little that one slow flush of beats would raise a suspicion."""
    return max(_LEAST_SILENCE, beat_interval(population) * _MISSED)
