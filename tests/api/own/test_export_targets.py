"""Where callers may have exports written: only below the places that the operator has allowed, however the address is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from api.operations.export_targets import check_target
from api.settings import Settings, SettingsError
from models.checkpoint import queries
from models.errors import Forbidden, Invalid
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.conftest import Serve
from tests.api.own.test_doors import refused
from tests.api.serving import TOKEN, settings_for
from tests.api.test_settings import GOOD

ALLOWED = ("s3://bucket/exports", "file:///srv/exports/")
OF_TEN = "/v1/jobs/{}/checkpoints/10/exports"


@pytest.fixture
def saved(sessions: Sessions) -> str:
    """A job whose step 10 is durable."""
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session, is_continuous=True)
        job = rows.job(session, cluster)
        name = rows.namespace(session, job, "llama")
        rows.durable(session, cluster, name, 10)
        job.spec = {**job.spec, "checkpoint": {"namespace": name}}
        return job.id


def test_without_a_word_of_the_operator_an_export_goes_to_the_installation_alone(ours: Any, saved: str, sessions: Sessions):
    for target in ("file:///etc/cron.d", "s3://somebody-elses/bucket"):
        code, message = refused(ours.export_job_checkpoint, JobId=saved, Step=10, Format="dcp", Target=target)
        assert code == "AccessDeniedException"
        assert "EVERSTEP_EXPORT_TO" in message
    with unit_of_work(sessions) as session:
        assert not queries.exports(session, "llama"), "nothing of it is left"
    assert ours.export_job_checkpoint(JobId=saved, Step=10, Format="dcp")["Status"] == "Wanted"


def test_below_an_allowed_place_a_caller_chooses(serve: Serve, database_url: str, saved: str):
    server = serve(replace(settings_for(database_url), export_to=ALLOWED))
    asked = {"format": "dcp", "target": "s3://bucket/exports/llama/10"}
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
        answer = http.post(OF_TEN.format(saved), json=asked)
        assert (answer.status_code, answer.json()["Target"]) == (202, asked["target"])
        assert http.post(OF_TEN.format(saved), json=asked | {"target": "s3://other/exports/x"}).status_code == 403


@pytest.mark.parametrize("target", ["s3://bucket/exports/a", "file:///srv/exports/a/b=1/", "s3://bucket/exports/a..b"])
def test_what_lies_below_an_allowed_place_is_one(target: str):
    check_target(target, ALLOWED, team=None)
    with pytest.raises(Forbidden, match="bound to a team"):
        check_target(target, ALLOWED, team="red")


@pytest.mark.parametrize(
    "target",
    [
        "s3://bucket/exports",  # the place itself is shared
        "s3://bucket/exports-of-others/a",
        "s3://bucket2/exports/a",
        "s3://bucket/a",
        "file:///srv/a",
        "file:///srv/exports",
    ],
)
def test_what_lies_beside_an_allowed_place_is_forbidden(target: str):
    with pytest.raises(Forbidden, match="s3://bucket/exports"):
        check_target(target, ALLOWED, team=None)


@pytest.mark.parametrize(
    "target",
    [
        "/srv/exports/a",
        "file:///srv/exports/../../etc",
        "file:///srv/exports/%2e%2e/etc",
        "file:///srv/exports//etc",
        "file:///srv/exports/./a",
        "file://localhost/srv/exports/a",
        "file:///srv/exports/a?b",
        "file:///srv/exports/a#b",
        "file:///srv/exports/a\n",
        "file:///srv/exports/a\\..\\b",
        "s3://bucket/exports/../a",
        "s3://user:word@bucket/exports/a",
        "s3://bucket:80/exports/a",
        "http://bucket/exports/a",
        "S3://bucket/exports/a",
        "",
    ],
)
def test_an_address_that_could_mean_two_things_is_none(target: str):
    with pytest.raises(Invalid, match="no address to export to"):
        check_target(target, ALLOWED, team=None)


def test_places_to_export_to_are_read_from_the_environment():
    assert Settings.from_environment(GOOD).export_to == ()
    told = Settings.from_environment(GOOD | {"EVERSTEP_EXPORT_TO": "s3://bucket/exports, file:///srv/exports/"})
    assert told.export_to == ALLOWED
    for wrong in ("/srv/exports", "file:///", "file:///srv/..", "s3://"):
        with pytest.raises(SettingsError, match="EVERSTEP_EXPORT_TO"):
            Settings.from_environment(GOOD | {"EVERSTEP_EXPORT_TO": wrong})
