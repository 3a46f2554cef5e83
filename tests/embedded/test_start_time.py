"""How long a start takes after the installation. Meaningful on an otherwise quiet machine."""

import time

import pytest

from everstep.embedded.home import Home
from tests.embedded.test_whole_stack import down, up

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]


def test_the_first_start_takes_15_seconds_at_most_and_the_next_5(tmp_path):
    home = Home.at(tmp_path / "home")
    figures = []
    for _ in range(4):
        began = time.monotonic()
        up(home)
        ready = time.monotonic()
        down(home)
        figures.append((ready - began, time.monotonic() - ready))
    print(f"\nup, first: {figures[0][0]:.1f} s; up, next: {[round(up_s, 1) for up_s, _ in figures[1:]]} s")
    print(f"down: {[round(down_s, 1) for _, down_s in figures]} s")
    assert figures[0][0] <= 15
    assert sorted(up_s for up_s, _ in figures[1:])[1] <= 5
