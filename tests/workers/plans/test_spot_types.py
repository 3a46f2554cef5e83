from __future__ import annotations

from decimal import Decimal

from workers.plans.spot_types import Market, order

TYPES = ("ml.a", "ml.b", "ml.c")


def test_types_of_which_nothing_is_known_stay_in_the_groups_order():
    assert order(TYPES, Market()).types == TYPES


def test_a_type_whose_hosts_are_taken_often_is_asked_for_after_the_others():
    assert order(TYPES, Market(rates={"ml.a": 0.9, "ml.b": 0.01})).types == ("ml.b", "ml.c", "ml.a")


def test_small_differences_between_rates_do_not_turn_the_order():
    assert order(TYPES, Market(rates={"ml.a": 0.04, "ml.b": 0.03, "ml.c": 0.0})).types == TYPES


def test_a_type_that_costs_its_list_price_or_more_comes_after_those_that_save():
    market = Market(spot={"ml.a": Decimal(3), "ml.b": Decimal(1)}, listed={"ml.a": Decimal(3), "ml.b": Decimal(3)})
    assert order(TYPES, market).types == ("ml.b", "ml.c", "ml.a")


def test_a_type_that_costs_more_than_the_policy_allows_is_left_out_and_said_why():
    found = order(TYPES, Market(spot={"ml.a": Decimal("2.5"), "ml.b": Decimal(1)}, highest=Decimal(2)))
    assert found.types == ("ml.b", "ml.c")
    assert found.too_dear == {"ml.a": "ml.a costs 2.5 dollars an hour on the spot market; the policy allows 2."}


def test_where_every_type_costs_too_much_all_are_kept_and_all_are_named():
    found = order(TYPES[:1], Market(spot={"ml.a": Decimal(3)}, highest=Decimal(2)))
    assert found.types == ("ml.a",)
    assert list(found.too_dear) == ["ml.a"]
