"""moto's own tests of clusters, as black-box calls against a real server: taken from its source distribution at run time, nothing of it kept.

They run in an environment of their own, told where the server is by moto's own variables; the key they insist on is the one with which this
installation begins. Before and after each test moto asks for ``/moto-api/reset``, which is answered by the harness and not by us.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import uvicorn
from sqlalchemy import Engine, select
from starlette.types import ASGIApp, Receive, Scope, Send

from api.app import create_app
from api.settings import Bootstrap
from everstep.embedded.children import free_port
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.session import connect, sessions
from tests import postgres as db
from tests.api.aws.conftest import sweep
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.serving import TOKEN, settings_for
from tests.clients.differences import MOTO
from tests.clients.environments import REQUIREMENTS, python_of
from tests.live import wait_for

pytestmark = pytest.mark.clients

KEY = Bootstrap("FOOBARKEY", "FOOBARSECRET", TOKEN)
TESTS = "tests/test_sagemaker/test_sagemaker_cluster.py"
Said = dict[str, str]
"""What each test said when it failed; nothing, when it passed."""


class Harness:
    """Our application with moto's reset beside it. ``is_patient`` False: a new cluster is in service before anything else is answered."""

    def __init__(self, app: ASGIApp, engine: Engine, *, is_patient: bool) -> None:
        self._app, self._engine, self._is_patient = app, engine, is_patient
        self._sessions = sessions(engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/moto-api/reset":
            sweep(self._engine)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        if scope["type"] == "http" and not self._is_patient:
            self._hurry()
        await self._app(scope, receive, send)

    def _hurry(self) -> None:
        with self._sessions() as session:
            names = session.scalars(select(Cluster.name).where(Cluster.state == ClusterState.CREATING)).all()
        for name in names:
            as_it_comes_into_service(self._sessions, name)


@contextmanager
def harness(database_url: str, *, is_patient: bool) -> Iterator[str]:
    engine = connect(database_url, pool_size=2)
    app = create_app(replace(settings_for(database_url), bootstrap=KEY))
    port = free_port()
    config = uvicorn.Config(Harness(app, engine, is_patient=is_patient), port=port, log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started, 20.0)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)
    engine.dispose()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests, and what they import, out of the source distribution of the version that the environment has."""
    found = re.search(r"^moto==\S+$", (REQUIREMENTS / "moto.txt").read_text(), re.MULTILINE)
    assert found
    folder = tmp_path_factory.mktemp("moto")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "moto"]
    subprocess.run([*command, "--dest", str(folder), found[0]], check=True)
    wanted = re.compile(r"[^/]+/tests/(__init__|conftest|test_sagemaker/__init__|test_sagemaker/test_sagemaker_cluster)\.py")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, [one for one in archive if wanted.fullmatch(one.name)], filter="data")
    return next(path.parent for path in folder.glob("*/tests"))


def run(source: Path, url: str) -> Said:
    report = source / "report.xml"
    environment = {"PATH": os.environ["PATH"], "HOME": str(source), "TEST_SERVER_MODE": "true", "TEST_SERVER_MODE_ENDPOINT": url}
    command = [str(python_of("moto")), "-m", "pytest", TESTS, "-q", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    subprocess.run(command, cwd=source, env=environment, capture_output=True, timeout=100, check=False)
    cases = ET.parse(report).getroot().iter("testcase")
    return {case.attrib["name"]: "".join(failed.text or "" for failed in case.iter("failure")) for case in cases}


@pytest.fixture(scope="module", params=[True, False], ids=["as it is", "in service at once"])
def ran(request: pytest.FixtureRequest, source: Path, postgres: str) -> tuple[bool, Said]:
    with db.database_of_its_own(postgres) as database_url, harness(database_url, is_patient=request.param) as url:
        return request.param, run(source, url)


def test_each_of_moto_s_tests_has_its_outcome_written_down(ran: tuple[bool, Said]):
    assert set(ran[1]) == set(MOTO)


@pytest.mark.parametrize("name", MOTO)
def test_a_test_of_moto_s_passes_or_contradicts_the_model_in_the_known_way(ran: tuple[bool, Said], name: str):
    is_patient, said = ran
    outcome = MOTO[name]
    if outcome.passes or (outcome.is_impatience and not is_patient):
        assert said[name] == ""
    else:
        assert said[name], "it passes now: say so in the list of differences"
        assert outcome.says in said[name] or not is_patient
