"""What the API promises about its cost, measured as `make bench` does and held to it."""

from __future__ import annotations

import pytest

from benchmarks import describe, listings

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]


def test_a_description_costs_a_third_of_moto_s_at_most() -> None:
    found = describe.cost(calls=1500)
    for size in found:
        print(describe.tell(size, found[size]))
    assert {size: told["ratio"] for size, told in found.items() if told["ratio"] > describe.MOST_OF_MOTO} == {}


def test_a_page_of_a_listing_takes_the_same_wherever_it_is() -> None:
    found = listings.times()
    print(listings.tell(found))
    assert max(found["middle_ms"], found["last_ms"]) <= found["first_ms"] * listings.MOST_OF_FIRST
    assert found["many_p95_ms"] <= found["few_p95_ms"] * listings.MOST_OF_FEW
