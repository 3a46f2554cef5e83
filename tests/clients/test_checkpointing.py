"""AWS's tiered checkpointing, the package of theirs as it is on PyPI, against the memory tiers of two local nodes.

It knows one address and takes no other: a name in the hosts file leads it to its node, here inside a mount namespace of each rank's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import httpx
import pytest

from everstep.embedded.children import free_port
from everstep.protocol import NODE_ID_VARIABLE
from everstep.shards import PORT
from tests.clients.environments import python_of
from tests.system.stack import Stack, group, until

pytestmark = pytest.mark.clients

NAME = "ai-toolkit-gossip-headless.aws-hyperpod.svc.cluster.local"
SCRIPT = Path(__file__).with_name("scripts") / "tiered_checkpointing.py"
OWN_FILES = 'mount --bind "$1" /etc/hosts && mount -t tmpfs none /var/log && shift && exec "$@"'
"""The package writes below /var/log, which is none of the test's business."""
SAVED = [10, 20, 30]


@dataclass(frozen=True)
class Place:
    """A node, and where its memory tier listens."""

    instance_id: str
    address: str

    def url(self, namespace: str, index: int, step: int) -> str:
        return f"http://{self.address}:{PORT}/v1/cp/checkpoints/{namespace}/{index}/{step}?scope=local"


@pytest.fixture(scope="module", autouse=True)
def _may_mount() -> None:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a hosts file of the ranks' own takes a mount namespace, which is not allowed here: {tried.stderr.strip()}")


@pytest.fixture
def places(stack: Stack, cluster_name: str) -> list[Place]:
    """Two nodes whose memory tiers answer."""
    tier = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
    instances = stack.create_cluster(cluster_name, group("workers", 2), TieredStorageConfig=tier, NodeRecovery="None")
    found = []
    for instance in instances:
        told = stack.sagemaker.describe_cluster_node(ClusterName=cluster_name, NodeId=instance)["NodeDetails"]
        found.append(Place(instance, told["PrivatePrimaryIp"]))
    for place in found:
        until(f"the tier of {place}", lambda place=place: _answers(place))
    return found


def _answers(place: Place) -> bool:
    try:
        return httpx.get(f"http://{place.address}:{PORT}/healthz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An S3 with a bucket ``checkpoints``, and what tells a client of it. By its address: a name would be taken for a bucket's."""
    port = free_port()
    exports = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
    }
    with (tmp_path / "moto.log").open("wb") as log:
        server = subprocess.Popen([str(python_of("checkpointing")), "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    try:
        until("S3", lambda: httpx.get(exports["AWS_ENDPOINT_URL"]).status_code == httpx.codes.OK if _listens(port) else False)
        client = boto3.client(
            "s3",
            endpoint_url=exports["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket="checkpoints")
        client.close()
        yield exports
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/")
    except httpx.TransportError:
        return False
    return True


@dataclass
class Ranks:
    """Starts the user's script, a rank on each of the places given, and waits for it."""

    folder: Path
    exports: dict[str, str]

    def run(self, places: list[Place], *words: str) -> dict[tuple[int, int], str]:
        """The digests that were told, by rank and step."""
        port = free_port()
        ranks = [self._start(place, rank, len(places), port, words) for rank, place in enumerate(places)]
        deadline = time.monotonic() + 100
        told: dict[tuple[int, int], str] = {}
        try:
            for rank in ranks:
                out, err = rank.communicate(timeout=max(1.0, deadline - time.monotonic()))
                assert rank.returncode == 0, err[-4000:]
                lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"rank"')]
                told |= {(line["rank"], line["step"]): line["digest"] for line in lines}
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        return told

    def _start(self, place: Place, rank: int, world_size: int, port: int, words: tuple[str, ...]) -> subprocess.Popen[str]:
        hosts = self.folder / f"hosts-{place.address}"
        hosts.write_text(f"127.0.0.1 localhost\n{place.address} {NAME}\n")
        command = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            OWN_FILES,
            "sh",
            str(hosts),
            str(python_of("checkpointing")),
            str(SCRIPT),
            *words,
        ]
        torchrun = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            NODE_ID_VARIABLE: place.instance_id,
            **torchrun,
            **self.exports,
        }
        return subprocess.Popen(
            command,
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def is_held(places: list[Place], namespace: str, step: int) -> bool:
    """Whether every one of these nodes has the whole step in its own memory."""
    urls = [place.url(namespace, index, step) for place in places for index in range(3)]
    return all(httpx.head(url).status_code == httpx.codes.OK for url in urls)


def test_a_step_saved_by_two_ranks_is_loaded_again_also_after_the_loss_of_a_node(stack: Stack, places: list[Place], tmp_path: Path):
    ranks = Ranks(tmp_path, {})
    saved = ranks.run(places, "save", "fsdp-run")
    assert sorted(saved) == [(rank, step) for rank in (0, 1) for step in SAVED]
    newest = {key: digest for key, digest in saved.items() if key[1] == SAVED[-1]}
    assert ranks.run(places, "load", "fsdp-run") == newest
    until("each node has the step of the other", lambda: is_held(places, "fsdp-run", SAVED[-1]), 20.0)
    stack.kill_node(places[1].instance_id)
    assert ranks.run([places[0], places[0]], "load", "fsdp-run") == newest, "a copy on the node that is left was not taken"


def test_a_step_that_was_saved_to_s3_is_loaded_when_memory_is_gone(places: list[Place], tmp_path: Path, s3: dict[str, str]):
    ranks = Ranks(tmp_path, s3)
    saved = ranks.run(places, "save", "with-s3", "s3://checkpoints/run")
    newest = {key: digest for key, digest in saved.items() if key[1] == SAVED[-1]}
    for place in places:
        httpx.delete(f"http://{place.address}:{PORT}/v1/cp/namespaces/with-s3")
    assert [httpx.get(f"http://{place.address}:{PORT}/v1/cp/checkpoints/with-s3/latest?limit=3").text for place in places] == [
        "[]"
    ] * 2
    assert ranks.run(places, "load", "with-s3", "s3://checkpoints/run") == newest
