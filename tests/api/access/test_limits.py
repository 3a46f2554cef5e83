"""Each key has its share of requests; who has used it up is told when to come again."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from api.limits import Meter, Throttled
from api.settings import Settings, SettingsError
from everstep.rest import Rest
from models.session import Sessions
from tests.api.access.holders import ONCE, refused
from tests.api.serving import KEY_ID, SECRET, TOKEN, Server, settings_for

MASTER_KEY = base64.b64encode(bytes(32)).decode()
ENVIRONMENT = {"EVERSTEP_DATABASE_URL": "x", "EVERSTEP_BROKER_URL": "x", "EVERSTEP_MASTER_KEY": MASTER_KEY}
NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


class Standing:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC)

    def now(self) -> datetime:
        return self.at


def spend(meter: Meter, key: str, now: datetime, most: int = 1000) -> int:
    """How many requests go through at one moment."""
    for count in range(most):
        try:
            meter.count(key, now)
        except Throttled:
            return count
    return most


def test_a_burst_goes_through_and_then_the_rate():
    meter = Meter(rate=10, burst=20)
    assert spend(meter, "a", NOW) == 20
    assert spend(meter, "a", NOW + timedelta(seconds=1)) == 10
    assert spend(meter, "a", NOW + timedelta(seconds=1.5)) == 5
    assert spend(meter, "a", NOW + timedelta(hours=1)) == 20


def test_calls_that_are_counted_out_of_order_get_nothing_twice():
    """Threads read the clock before they wait for the bucket."""
    meter = Meter(rate=10, burst=20)
    assert spend(meter, "a", NOW) == 20
    assert spend(meter, "a", NOW + timedelta(seconds=1)) == 10
    for _ in range(50):
        assert spend(meter, "a", NOW) == 0
        assert spend(meter, "a", NOW + timedelta(seconds=1)) == 0


def test_each_key_has_a_bucket_of_its_own():
    meter = Meter(rate=1, burst=2)
    assert spend(meter, "a", NOW) == 2
    assert spend(meter, "b", NOW) == 2


def test_who_is_throttled_is_told_when_the_next_request_goes_through():
    meter = Meter(rate=4, burst=1)
    meter.count("a", NOW)
    with pytest.raises(Throttled) as caught:
        meter.count("a", NOW)
    wait = timedelta(seconds=caught.value.retry_after_s)
    assert wait == timedelta(seconds=0.25)
    with pytest.raises(Throttled):
        meter.count("a", NOW + wait / 2)
    meter.count("a", NOW + wait)


def test_without_a_rate_nothing_is_counted():
    assert spend(Meter(rate=0, burst=0), "a", NOW) == 1000


@given(gaps=st.lists(st.floats(0, 2), max_size=60), rate=st.integers(1, 20), burst=st.integers(1, 40))
def test_no_span_of_time_lets_more_through_than_its_rate_and_one_burst(gaps: list[float], rate: int, burst: int):
    meter, at, passed = Meter(rate, burst), NOW, []
    for gap in gaps:
        at += timedelta(seconds=gap)
        passed += [at] * spend(meter, "a", at, most=3)
    for first, start in enumerate(passed):
        for last in range(first, len(passed)):
            span = (passed[last] - start).total_seconds()
            assert last - first + 1 <= burst + rate * span + 1e-6


@pytest.fixture
def clock() -> Standing:
    return Standing()


@pytest.fixture
def small(serve, database_url: str, clock: Standing) -> Server:
    """A server that gives each key two requests a second and a burst of four, on a clock that stands still."""
    return serve(replace(settings_for(database_url), rate_limit=2.0), clock)


def test_the_doors_say_it_in_their_own_words(small: Server, clock: Standing):
    with httpx.Client(base_url=small.url, headers={"authorization": f"Bearer {TOKEN}"}, verify=False) as rest:
        assert [rest.get("/v1/jobs").status_code for _ in range(5)] == [200] * 4 + [429]
        told = rest.get("/v1/jobs")
        assert told.headers["retry-after"] == "1"
        assert told.headers["content-type"] == "application/problem+json"
        assert told.json()["code"] == "Throttled"
        clock.at += timedelta(seconds=1)
        assert [rest.get("/v1/jobs").status_code for _ in range(3)] == [200, 200, 429]
    sagemaker = client(small, ONCE)
    for _ in range(4):
        sagemaker.list_clusters()
    assert refused(sagemaker.list_clusters) == ("ThrottlingException", "Rate exceeded")
    answer = small.call("ListClusters", {})
    assert (answer.status_code, answer.json()["__type"]) == (400, "ThrottlingException")


def client(server: Server, config: Config) -> Any:
    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
    return boto3.session.Session().client("sagemaker", endpoint_url=server.url, region_name="us-east-1", config=config, **keys)


def test_boto3_comes_again_by_itself_and_gets_through(serve, database_url: str):
    server = serve(replace(settings_for(database_url), rate_limit=2.0))  # met by a machine that takes half a second for a call, too
    sagemaker = client(server, Config(retries={"mode": "standard", "total_max_attempts": 6}))
    attempts = [0]
    sagemaker.meta.events.register("needs-retry.*", lambda **given: attempts.append(given["attempts"]))
    calls = 0
    while max(attempts) <= 1:
        assert "ClusterSummaries" in sagemaker.list_clusters()
        calls += 1
        assert calls < 50, "the limit was never met"


def test_our_own_command_line_comes_again_as_well(serve, database_url: str):
    server = serve(replace(settings_for(database_url), rate_limit=5.0))
    with Rest(server.url, TOKEN) as rest:
        for _ in range(14):
            assert rest.get("/v1/jobs")["jobs"] == []


def test_whoever_is_nobody_uses_up_nobodys_share(small: Server):
    for _ in range(10):
        assert small.call("ListClusters", {}, secret="wrong").status_code == 403
        assert httpx.get(f"{small.url}/v1/jobs", headers={"authorization": "Bearer no"}, verify=False).status_code == 401
    assert small.call("ListClusters", {}).status_code == 200


def test_whoever_is_nobody_costs_the_database_one_lookup(serve, database_url: str, sessions: Sessions):
    server = serve(settings_for(database_url))
    server.call("ListClusters", {})
    asked: list[str] = []

    def listen(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        server.call("CreateCluster", {"ClusterName": "x"}, secret="wrong")
        server.call("CreateCluster", {"ClusterName": "x"}, key_id="AKIANOBODY0000000000")
        httpx.post(f"{server.url}/v1/jobs", headers={"authorization": "Bearer nobody"}, json={}, verify=False)
        httpx.post(f"{server.url}/v1/jobs", json={}, verify=False)
    finally:
        event.remove(Engine, "before_cursor_execute", listen)
    of_keys = [statement for statement in asked if "credential" in statement]
    assert len(of_keys) == 3, of_keys
    assert all(statement.startswith("SELECT") for statement in of_keys)
    # The agents' door writes its pulse meanwhile, whoever calls.
    assert not [statement for statement in asked if "INSERT" in statement and "INTO pulse" not in statement]


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_a_rate_that_is_none_is_refused_at_the_start(text: str):
    assert Settings.from_environment(ENVIRONMENT).rate_limit == 200
    assert Settings.from_environment(ENVIRONMENT | {"EVERSTEP_RATE_LIMIT": "0"}).rate_limit == 0
    with pytest.raises(SettingsError, match="EVERSTEP_RATE_LIMIT"):
        Settings.from_environment(ENVIRONMENT | {"EVERSTEP_RATE_LIMIT": text})


def test_trusted_proxies_are_read_from_the_environment():
    read = Settings.from_environment(ENVIRONMENT | {"EVERSTEP_TRUSTED_PROXIES": "10.0.0.1, 10.0.0.2"})
    assert read.trusted_proxies == {"10.0.0.1", "10.0.0.2"}
