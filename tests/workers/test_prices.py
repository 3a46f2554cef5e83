"""Prices: files, and the series that is made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from models.node.states import CapacityType
from models.session import unit_of_work
from models.spot.changes import report_prices
from models.spot.ledger import Point
from models.spot.table import Price
from tests import rows
from tests.workers.small_plane import TestClock
from workers import prices
from workers.providers import registry
from workers.providers.base import ProviderError
from workers.providers.prices import BadPrices, ListPrices, SpotPrice, TraceFile
from workers.settings import Settings, SettingsError

C5 = "ml.c5.xlarge"
HOUR = timedelta(hours=1)


@dataclass
class Told:
    """A source that knows the whole trace, and notes what it was asked."""

    trace: list[SpotPrice]
    listed: Decimal = Decimal("0.17")
    asked: list[datetime] = field(default_factory=list)
    is_out: bool = False

    def spot(self, _instance_types, *, since):
        if self.is_out:
            message = "no answer"
            raise ProviderError(message)
        self.asked.append(since)
        before = [price for price in self.trace if price.at <= since][-1:]
        return [*before, *(price for price in self.trace if price.at > since)]

    def on_demand(self, _instance_type):
        return self.listed


def trace(hours: int = 12) -> list[SpotPrice]:
    begin = rows.NOW - 6 * HOUR
    return [SpotPrice(C5, "us-east-1a", begin + hour * HOUR, Decimal("0.05") + Decimal(hour) / 1000) for hour in range(hours)]


@pytest.fixture
def spot_cluster(sessions):
    wire = {"InstanceGroupName": "spot", "InstanceType": C5, "InstanceCount": 1, "CapacityRequirements": {"Spot": {}}}
    with unit_of_work(sessions) as session:
        rows.cluster(session, groups=(rows.group_spec("spot", 1, spec=wire),), is_continuous=True)


def series(sessions, market: CapacityType = CapacityType.SPOT) -> list[tuple[datetime, Decimal]]:
    with unit_of_work(sessions) as session:
        found = session.query(Price).filter_by(market=market).order_by(Price.at)
        return [(row.at, row.per_hour) for row in found]


def test_a_collector_that_was_away_for_hours_leaves_no_gap_and_no_double(sessions, spot_cluster):
    clock, source = TestClock(), Told(trace())
    prices.collect(sessions, clock, source)
    prices.collect(sessions, clock, source)
    assert len(series(sessions)) == 7  # what lies in the future is no price yet
    clock.at += 4 * HOUR + timedelta(minutes=1)
    source.is_out = True
    assert prices.collect(sessions, clock, source) == 0
    source.is_out = False
    assert prices.collect(sessions, clock, source) == 4
    assert series(sessions) == [(price.at, price.per_hour) for price in source.trace[:11]]
    assert source.asked[-1] == rows.NOW


def test_a_price_that_was_told_stays_what_it_was(sessions, spot_cluster):
    source = Told(trace())
    prices.collect(sessions, TestClock(), source)
    before = series(sessions)
    source.trace = [SpotPrice(one.instance_type, one.zone, one.at, one.per_hour * 2) for one in source.trace]
    prices.collect(sessions, TestClock(), source)
    assert series(sessions) == before


def test_more_prices_than_one_statement_can_carry_are_added_all_and_once(sessions):
    """Postgres takes 65,535 parameters a statement; a price has five."""
    begin = rows.NOW - timedelta(days=14)
    points = [Point(CapacityType.SPOT, C5, "us-east-1a", begin + n * timedelta(minutes=1), Decimal("0.05")) for n in range(13_108)]
    with unit_of_work(sessions) as session:
        assert report_prices(session, points[:5]) == 5
        assert report_prices(session, points) == len(points) - 5
        assert report_prices(session, points[-5:]) == 0


def test_list_prices_hold_from_ever_and_a_new_one_from_when_it_was_seen(sessions, spot_cluster):
    clock, source = TestClock(), Told([])
    prices.collect(sessions, clock, source)
    prices.collect(sessions, clock, source)
    clock.at += HOUR
    source.listed = Decimal("0.19")
    prices.collect(sessions, clock, source)
    assert series(sessions, CapacityType.ON_DEMAND) == [(prices.ALWAYS, Decimal("0.17")), (clock.at, Decimal("0.19"))]


# ---------------------------------------------------------------------------------------------------------- files

MAY = datetime(2031, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "at,instance_type,zone,per_hour\n2031-05-01T00:00:00Z,g5.8xlarge,a,0.80\n2031-05-01T01:00:00Z,ml.g5.8xlarge,a,0.9\n",
        (
            '{"at": 1935360000, "instance_type": "ml.g5.8xlarge", "zone": "a", "per_hour": 0.80}\n\n'
            '{"at": "2031-05-01T01:00", "instance_type": "ml.g5.8xlarge", "zone": "a", "per_hour": "0.9"}\n'
        ),
    ],
)
def test_a_trace_is_read_from_csv_and_from_json_lines(tmp_path, text):
    path = tmp_path / "trace"
    path.write_text(text)
    source = TraceFile(path, ListPrices.shipped())
    whole = source.spot(["ml.g5.8xlarge"], since=MAY - HOUR)
    assert [(price.at, price.per_hour) for price in whole] == [(MAY, Decimal("0.80")), (MAY + HOUR, Decimal("0.9"))]
    assert [price.per_hour for price in source.spot(["ml.g5.8xlarge"], since=MAY + 2 * HOUR)] == [Decimal("0.9")]
    assert source.spot(["ml.c5.large"], since=MAY) == []
    assert source.on_demand("ml.g5.8xlarge") == Decimal("2.448")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("when,what\n1,2\n", "the first line must be at,instance_type,zone,per_hour"),
        ("at,instance_type,zone,per_hour\nsoon,ml.x,a,1\n", "line 2: at is 'soon'"),
        ("at,instance_type,zone,per_hour\n1,ml.x,a,cheap\n", "line 2: per_hour is 'cheap'"),
        ("at,instance_type,zone,per_hour\n1,ml.x,a,-1\n", "must not be less than nothing"),
        ("at,instance_type,zone,per_hour\n1,,a,1\n", "instance_type is missing"),
        ('{"at": 1}\n{nonsense\n', "line 1: instance_type is missing"),
        ("{nonsense\n", "line 1: no JSON object"),
    ],
)
def test_a_trace_that_cannot_be_read_names_the_line_and_what_is_wrong(tmp_path, text, says):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadPrices, match=says):
        TraceFile(path, ListPrices.shipped()).spot(["ml.x"], since=MAY)


def test_list_prices_of_a_file_come_before_those_that_are_shipped(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("instance_type,per_hour\nc5.xlarge,0.123\n")
    assert ListPrices.of_file(path).on_demand(C5) == Decimal("0.123")
    assert ListPrices.shipped().on_demand(C5) == Decimal("0.17")
    assert ListPrices.shipped().on_demand("ml.none.xlarge") is None


def test_the_settings_name_the_files_and_a_missing_one_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("at,instance_type,zone,per_hour\n")
    given = {
        "DATABASE_URL": "x",
        "BROKER_URL": "x",
        "MASTER_KEY": "A" * 43 + "=",
        "OBJECT_STORE_URL": "x",
        "HOME_DIR": "x",
        "API_URL": "x",
    }
    environ = {f"EVERSTEP_{name}": value for name, value in given.items()}
    settings = Settings.from_environ(environ | {"EVERSTEP_SPOT_PRICES": str(path)})
    assert isinstance(registry.prices(settings), TraceFile)
    assert isinstance(registry.prices(Settings.from_environ(environ)), ListPrices)
    with pytest.raises(SettingsError, match=r"EVERSTEP_ON_DEMAND_PRICES is .*there is no such file"):
        Settings.from_environ(environ | {"EVERSTEP_ON_DEMAND_PRICES": str(tmp_path / "none")})
