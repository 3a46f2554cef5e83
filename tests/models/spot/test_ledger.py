from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from models.node.states import CapacityType
from models.spot.ledger import Bill, Life, Point, Prices, Use, bill, shares, shown

START = datetime(2031, 5, 1, tzinfo=UTC)
SPOT, LISTED = CapacityType.SPOT, CapacityType.ON_DEMAND
TYPE = "ml.g5.8xlarge"


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def life(since: float, until: float, market: CapacityType = SPOT, zone: str = "a") -> Life:
    return Life("n1", TYPE, zone, market, at(since), at(until))


def book(*points: tuple[CapacityType, str, float, str]) -> Prices:
    return Prices.of(Point(market, TYPE, zone, at(minutes), Decimal(price)) for market, zone, minutes, price in points)


BOOK = book((SPOT, "a", -60, "0.6"), (SPOT, "a", 20, "0.9"), (LISTED, "", -1000, "2.448"))

moments = st.integers(0, 10**10).map(lambda microseconds: START + timedelta(microseconds=microseconds))
prices = st.decimals(min_value=0, max_value=100, places=4, allow_nan=False)
points = st.lists(
    st.builds(Point, st.sampled_from([SPOT, LISTED]), st.just(TYPE), st.sampled_from(["a", ""]), moments, prices), max_size=12
)


def test_a_bill_is_the_sum_of_each_price_times_its_seconds():
    found = bill(life(0, 60), BOOK)
    # 20 minutes at 0.60 an hour are 0.20, 40 minutes at 0.90 are 0.60; an hour of the list price is 2.448.
    assert (shown(found.spot), shown(found.listed), shown(found.saved)) == (Decimal("0.8"), Decimal("2.448"), Decimal("1.648"))


def test_a_second_at_an_awkward_price_is_exact_until_it_is_shown():
    found = bill(life(0, 1 / 60), book((SPOT, "a", 0, "0.1")))
    assert found.spot == Fraction(1, 36000)
    assert shown(found.spot, 2) == Decimal("0.00")


def test_an_on_demand_host_costs_its_list_price_and_saves_nothing():
    found = bill(life(0, 30, LISTED), BOOK)
    assert (found.on_demand, found.saved, found.spot) == (Fraction("1.224"), 0, 0)


def test_seconds_before_the_first_known_price_are_told_apart_and_not_free():
    found = bill(life(-90, -30), BOOK)
    assert found.unpriced_us == Fraction(30 * 60 * 10**6)
    assert found.spot == Fraction("0.3")


def test_a_spot_second_without_a_list_price_costs_what_it_costs_and_is_in_no_saving():
    found = bill(life(0, 60), book((SPOT, "a", 0, "0.6")))
    assert (found.spot, found.saved, found.listed) == (Fraction("0.6"), 0, 0)
    assert found.unlisted_us == found.spot_us


def test_a_zone_without_prices_of_its_own_has_those_of_all_zones():
    assert bill(life(0, 60, zone="b"), book((SPOT, "", 0, "0.5"))).spot == Fraction("0.5")
    assert bill(life(0, 60, zone="b"), book((SPOT, "a", 0, "0.5"))).unpriced_us > 0


def test_two_jobs_on_one_host_share_the_time_that_both_were_there():
    uses = [Use("n1", "j1", at(0), at(40)), Use("n1", "j2", at(20), at(40)), Use("n2", "j3", at(0), at(60))]
    found = shares(life(0, 60), uses, book((SPOT, "a", 0, "6")))
    assert {job: part.spot for job, part in found.items()} == {"j1": 3, "j2": 1, None: 2}


@settings(max_examples=60)
@given(points, moments, moments, moments, st.sampled_from([SPOT, LISTED]))
def test_splitting_a_life_anywhere_changes_no_sum(series, one, two, three, market):
    since, middle, until = sorted((one, two, three))
    book_ = Prices.of(series)
    parts = [bill(Life("n", TYPE, "a", market, a, b), book_) for a, b in ((since, middle), (middle, until))]
    assert parts[0] + parts[1] == bill(Life("n", TYPE, "a", market, since, until), book_)


@settings(max_examples=60)
@given(points, st.lists(st.tuples(st.sampled_from("xyz"), moments, moments), max_size=6), moments, moments)
def test_what_jobs_and_nobody_are_billed_is_the_whole_bill(series, uses, one, two):
    book_ = Prices.of(series)
    here = Life("n1", TYPE, "a", SPOT, *sorted((one, two)))
    used = [Use("n1", job, *sorted((since, until))) for job, since, until in uses]
    assert sum(shares(here, used, book_).values(), Bill()) == bill(here, book_)


@settings(max_examples=40)
@given(points, moments, moments)
def test_a_price_that_comes_twice_costs_once(series, one, two):
    here = Life("n1", TYPE, "a", SPOT, *sorted((one, two)))
    assert bill(here, Prices.of([*series, *series])) == bill(here, Prices.of(series))
