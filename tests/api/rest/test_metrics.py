"""What the control plane can be watched by, and who is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_network

import httpx
import pytest
from sqlalchemy import event

from api.operations.metrics import FAMILIES, Sample, samples
from api.rest.metrics import written
from everstep.tiers import CopyStatus
from models.checkpoint import reports
from models.clock import WallClock
from models.job.ledger import ACCOUNTS
from models.job.states import JobState
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.serving import Server, settings_for

OUTAGE = "503 from the object store"


@pytest.fixture
def saved(sessions: Sessions) -> str:
    """A job that saves on two nodes: step 10 is durable, a copy of step 20 has rotted, and one node cannot reach the store."""
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
        one, other = rows.nodes(session, cluster, 2)
        job = rows.job(session, cluster)
        rows.settle_job(session, job, JobState.FORMING)
        name = rows.namespace(session, job, "llama")
        rows.held(session, one, name, 10, [0, 1])
        rows.held(session, other, name, 20, [0, 1])
        rows.held(session, other, name, 20, [1], status=CopyStatus.CORRUPT, at=rows.NOW + timedelta(seconds=30))
        rows.durable(session, cluster, name, 10, at=WallClock().now() - timedelta(seconds=100))
        told = reports.Tier(1, 1000, 300, 50, None, OUTAGE, 2, None, rows.NOW)
        reports.report_tier(session, one, told, now=rows.NOW)
        return job.id


def figures(server: Server) -> dict[str, float]:
    """By a sample's name and labels, as they are written."""
    answer = httpx.get(f"{server.url}/metrics", verify=False)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_tell_of_durable_steps_tiers_copies_jobs_and_nodes(server: Server, saved: str):
    found = figures(server)
    assert 100 <= found[f'everstep_age_of_last_durable_step_seconds{{job="{saved}",namespace="llama"}}'] < 160
    assert found[f'everstep_last_durable_step{{job="{saved}",namespace="llama"}}'] == 10
    node = f'node="i-{1:017x}"'
    assert found[f"everstep_memory_tier_allocated_bytes{{{node}}}"] == 1000
    assert found[f"everstep_memory_tier_used_bytes{{{node}}}"] == 300
    assert found[f"everstep_memory_tier_backlog_bytes{{{node}}}"] == 50
    assert found[f"everstep_memory_tier_store_is_out{{{node}}}"] == 1
    assert found[f"everstep_memory_tier_refusals{{{node}}}"] == 2
    assert found['everstep_checkpoint_copies{state="sealed"}'] == 3
    assert found['everstep_checkpoint_copies{state="corrupt"}'] == 1
    assert found['everstep_checkpoint_copies{state="lost"}'] == 0
    assert found['everstep_jobs{state="forming"}'] == 1
    assert found['everstep_nodes{state="ready"}'] == 2
    assert 'everstep_nodes{state="gone"}' not in found
    accounts = [name for name in found if name.startswith(f'everstep_job_account_seconds{{job="{saved}"')]
    assert len(accounts) == len(ACCOUNTS)


def test_a_job_without_a_durable_step_grows_old_since_it_began(sessions: Sessions):
    with unit_of_work(sessions) as session:
        job = rows.job(session, rows.cluster(session))
        rows.namespace(session, job)
        rows.settle_job(session, job, JobState.FORMING)
        found = {sample.name: sample.value for sample in samples(session, now=rows.NOW + timedelta(seconds=77))}
    assert found["everstep_age_of_last_durable_step_seconds"] == 77
    assert "everstep_last_durable_step" not in found


def test_metrics_cost_ten_queries_however_many_nodes_there_are(sessions: Sessions, saved: str):
    asked: list[str] = []
    with sessions() as session:
        event.listen(session.get_bind(), "before_cursor_execute", lambda *told: asked.append(told[2]))
        assert {sample.name for sample in samples(session, now=WallClock().now())} == set(FAMILIES)
    assert len(asked) <= 10


def test_metrics_are_told_to_nobody_else_unless_networks_are_listed(serve, database_url: str, server: Server, sessions: Sessions):
    passed_on = httpx.get(f"{server.url}/metrics", verify=False, headers={"x-forwarded-for": "127.0.0.1"})
    assert passed_on.status_code == 403
    assert "EVERSTEP_METRICS_FROM" in passed_on.text
    elsewhere = serve(replace(settings_for(database_url), metrics_from=(ip_network("10.0.0.0/8"),)))
    assert httpx.get(f"{elsewhere.url}/metrics", verify=False).status_code == 403


def test_the_text_format_escapes_what_would_break_a_line():
    name = "everstep_last_durable_step"
    told = written([Sample(name, 1, {"job": 'a"b\\c\nd'})])
    assert f'{name}{{job="a\\"b\\\\c\\nd"}} 1' in told.splitlines()
    assert all(f"# TYPE {family} gauge" in told for family in FAMILIES), "also families without a sample"
