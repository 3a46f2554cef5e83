"""A Python client, generated from the checked-in document by openapi-python-client and used as it comes out."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from api.openapi import FOLDER, control_plane
from models.cluster.queries import find, groups
from models.cluster.states import ClusterState, GroupState
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.serving import ROLE, TOKEN, Server

NAME = "everstep_client"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the client in it, importable until the module's end."""
    folder = tmp_path_factory.mktemp("generated")
    config = folder / "config.yaml"
    config.write_text("post_hooks: []\n")
    options = ["--path", str(FOLDER / "control-plane.json"), "--output-path", str(folder / NAME), "--config", str(config)]
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", *options]
    made = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, timeout=100)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "Traceback" not in made.stderr
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture
def client(generated: Path, server: Server) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with part("client").AuthenticatedClient(base_url=server.url, token=TOKEN, verify_ssl=False) as client:
            yield client


def part(name: str) -> ModuleType:
    return importlib.import_module(f"{NAME}.{name}")


def cluster(client: Any, name: str) -> Any:
    models = part("models")
    group = models.ClusterInstanceGroupSpecification(
        instance_group_name="workers",
        instance_count=2,
        instance_type=models.ClusterInstanceType.ML_C5_XLARGE,
        execution_role=ROLE,
    )
    wish = models.CreateClusterRequest(cluster_name=name, instance_groups=[group])
    return part("api.clusters.create_cluster").sync(client=client, body=wish, idempotency_key=f"make {name}")


def serve(sessions: Sessions, name: str) -> None:
    with unit_of_work(sessions) as session:
        found = find(session, name, lock=True)
        for group in groups(session, found.id):
            rows.settle_group(session, found, group, GroupState.IN_SERVICE)
        rows.settle_cluster(session, found, ClusterState.IN_SERVICE)


def test_every_operation_of_the_document_has_its_function(generated: Path) -> None:
    operations = [each["operationId"] for methods in control_plane()["paths"].values() for each in methods.values()]
    functions = {path.stem.replace("_", "") for path in (generated / NAME / "api").glob("*/*.py")}
    assert {name.lower() for name in operations} <= functions


def test_a_cluster_s_life_is_lived_through_the_generated_client(client: Any, sessions: Sessions) -> None:
    models = part("models")
    made = cluster(client, "c1")
    assert isinstance(made, models.CreateClusterResponse)
    serve(sessions, "c1")
    shown = part("api.clusters.describe_cluster").sync_detailed("c1", client=client)
    assert shown.parsed.creation_time.utcoffset().total_seconds() == 0
    assert shown.parsed.cluster_status is models.ClusterStatus.INSERVICE
    held = shown.headers["etag"]
    by_arn = part("api.clusters.describe_cluster").sync(made.cluster_arn, client=client)
    assert by_arn.cluster_name == "c1"

    recovery = models.UpdateClusterRequest(node_recovery=models.ClusterNodeRecovery.NONE)
    update = part("api.clusters.update_cluster")
    assert update.sync_detailed("c1", client=client, body=recovery, if_match=held).status_code == 202
    serve_again(sessions)
    outdated = update.sync_detailed("c1", client=client, body=recovery, if_match=held)
    assert (outdated.status_code, outdated.parsed.code) == (412, "PreconditionFailed")
    assert part("api.clusters.delete_cluster").sync_detailed("c1", client=client).status_code == 202


def serve_again(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        found = find(session, "c1", lock=True)
        rows.settle_cluster(session, found, ClusterState.IN_SERVICE)


def test_pages_are_turned_and_refusals_are_typed(client: Any) -> None:
    models = part("models")
    for name in ("a", "b", "c"):
        cluster(client, name)
    turn = part("api.clusters.list_clusters").sync
    first = turn(client=client, max_results=2, sort_by=models.ClusterSortBy.NAME)
    rest = turn(client=client, max_results=2, sort_by=models.ClusterSortBy.NAME, next_token=first.next_token)
    assert [row.cluster_name for row in first.cluster_summaries + rest.cluster_summaries] == ["a", "b", "c"]
    refused = turn(client=client, next_token="nonsense")
    assert isinstance(refused, models.Problem)
    assert refused.status == 422


def test_a_job_is_submitted_listed_shown_and_stopped(client: Any) -> None:
    models = part("models")
    cluster(client, "c1")
    file = models.SubmitJobRequest(name="gpt", cluster="c1", command=["python", "train.py"], working_dir="/work", replicas=1)
    submitted = part("api.jobs.submit_job").sync(client=client, body=file)
    shown = part("api.jobs.describe_job").sync(submitted.job_id, client=client)
    assert (shown.name, shown.status) == ("gpt", "Queued")
    assert [job.job_id for job in part("api.jobs.list_jobs").sync(client=client, cluster="c1").jobs] == [submitted.job_id]
    assert part("api.jobs.stop_job").sync(submitted.job_id, client=client).is_stopping is True
    told = part("api.events.list_events").sync(client=client, job_id=submitted.job_id)
    assert [event.name for event in told.events] == ["job submitted", "stop requested"]
