"""Alive is one thing, ready another."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import httpx

from models.clock import WallClock
from models.pulse import report_pulse
from models.session import Sessions, unit_of_work
from tests.api.serving import settings_for


def ready(url: str) -> tuple[int, dict[str, str]]:
    answer = httpx.get(f"{url}/readyz", verify=False)
    return answer.status_code, answer.json()["checks"]


def pulse(sessions: Sessions, *, ago: timedelta = timedelta()) -> None:
    with unit_of_work(sessions) as session:
        for queue in ("fast", "slow"):
            report_pulse(session, queue, now=WallClock().now() - ago)


def test_alive_needs_nothing(server):
    answer = httpx.get(f"{server.url}/healthz", verify=False)
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


def test_ready_means_that_database_broker_and_both_workers_answer(serve, database_url, sessions, broker_url):
    server = serve(settings_for(database_url, broker_url))
    status, checks = ready(server.url)
    assert status == 503
    assert "no worker has ever answered" in checks["worker fast"]
    pulse(sessions)
    assert ready(server.url) == (200, dict.fromkeys(("broker", "database", "worker fast", "worker slow"), "ok"))


def test_a_worker_that_fell_silent_is_named(serve, database_url, sessions, broker_url):
    server = serve(settings_for(database_url, broker_url))
    pulse(sessions, ago=timedelta(seconds=60))
    status, checks = ready(server.url)
    assert status == 503
    assert checks["worker slow"].startswith("no worker has answered through the broker for 6")


def test_a_broker_that_nobody_reaches_is_named(server, sessions):
    pulse(sessions)
    status, checks = ready(server.url)
    assert status == 503
    assert "cannot connect to 127.0.0.1:1" in checks["broker"]


def test_a_sign_of_life_from_before_the_stack_began_does_not_count(serve, database_url, sessions, broker_url):
    began = WallClock().now() - timedelta(seconds=5)
    server = serve(dataclasses.replace(settings_for(database_url, broker_url), stack_began_at=began))
    pulse(sessions, ago=timedelta(seconds=6))
    status, checks = ready(server.url)
    assert status == 503
    assert checks["worker fast"] == "no worker has answered through the broker since the stack began"
    pulse(sessions)
    assert ready(server.url)[0] == 200
