"""Versions under callers who change one quota at once: real threads, real commits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from models import revised
from models.cluster import queries as clusters
from models.errors import Outdated, Taken
from models.ids import RevisedId
from models.quota import changes
from models.quota.profiles import PROFILES
from models.quota.table import ComputeQuota, ComputeQuotaRevision
from models.revised import Change, Place
from models.session import Sessions, unit_of_work
from tests import rows

NOW = rows.NOW


def asked(number: int) -> Change:
    return Change(
        settings={"ActivationState": f"by {number}"}, description=None, by=f"arn:{number}", at=NOW + timedelta(seconds=number)
    )


def place_in(session, name: str) -> Place:
    cluster = clusters.find(session, name, lock=True)
    return Place(cluster.id, cluster.arn, "us-east-1", "123456789012")


def made(sessions: Sessions, name: str) -> RevisedId:
    with unit_of_work(sessions) as session:
        rows.cluster(session, name)
        return changes.request_quota(session, place_in(session, name), "q1", "vision", asked(0)).id


def update(sessions: Sessions, quota_id: str, number: int, seen: int, start: threading.Barrier) -> int | None:
    """The version that this caller has made; None: it was told that it had seen an old one."""
    start.wait(timeout=10)
    try:
        with unit_of_work(sessions) as session:
            quota = revised.get(session, ComputeQuota, quota_id)
            clusters.find(session, quota.cluster_arn, lock=True)
            quota = revised.get(session, ComputeQuota, quota_id, lock=True)
            changes.request_revision(session, quota, quota.team, asked(number), seen=seen)
            return quota.revision
    except Outdated:
        return None


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waves=st.lists(st.integers(min_value=2, max_value=6), min_size=1, max_size=3), cluster=st.uuids())
def test_of_callers_who_have_seen_the_same_version_exactly_one_wins(sessions: Sessions, waves, cluster) -> None:
    quota_id = made(sessions, f"c-{cluster}")
    winners = [0]
    for seen, callers in enumerate(waves, start=1):
        start = threading.Barrier(callers)
        with ThreadPoolExecutor(callers) as pool:
            ends = [pool.submit(update, sessions, quota_id, number, seen, start) for number in range(1, callers + 1)]
        versions = [end.result() for end in ends]
        assert sorted(version for version in versions if version is not None) == [seen + 1]
        winners.append(1 + versions.index(seen + 1))
    with sessions() as session:
        wanted = select(ComputeQuotaRevision).where(ComputeQuotaRevision.owner_id == quota_id)
        kept = session.scalars(wanted.order_by(ComputeQuotaRevision.number)).all()
        assert [(row.number, row.made_by) for row in kept] == [(n, f"arn:{who}") for n, who in enumerate(winners, start=1)]
        quota = revised.get(session, ComputeQuota, quota_id)
        assert (quota.revision, quota.settings) == (kept[-1].number, kept[-1].settings)


@pytest.mark.parametrize("callers", [4])
def test_of_callers_who_want_a_quota_for_one_team_at_once_one_gets_it(sessions: Sessions, callers: int) -> None:
    with unit_of_work(sessions) as session:
        rows.cluster(session, "c1")
    start = threading.Barrier(callers)

    def create(number: int) -> str:
        start.wait(timeout=10)
        try:
            with unit_of_work(sessions) as session:
                changes.request_quota(session, place_in(session, "c1"), f"q{number}", "vision", asked(number))
        except Taken:
            return "taken"
        return "made"

    with ThreadPoolExecutor(callers) as pool:
        ends = sorted(pool.map(create, range(callers)))
    assert ends == ["made", *["taken"] * (callers - 1)]
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(ComputeQuota)) == 1


def test_a_device_has_seven_single_slices_or_one_whole() -> None:
    for profiles in PROFILES.values():
        assert sorted(profiles.values()) == [1, 1, 2, 3, 4, 7]
    assert PROFILES["a100-40gb"]["mig-1g.10gb"] == 4
