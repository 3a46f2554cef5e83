"""Real servers of S3's protocol: moto for its semantics, SeaweedFS for objects of size. Each on ports of its own, and gone afterwards."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "checkpoints-of-tests"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "secret-of-tests", "AWS_REGION": "us-east-1"}
START_S = 60.0
_GRPC = 10_000
"""SeaweedFS listens on every port and on the one so much above it."""
_ROOT = Path(__file__).parents[2]


class Server:
    """``kill`` is SIGKILL; what it has answered for stays on disk, if it keeps anything there."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.url = f"s3://{BUCKET}/a/prefix"
        self.environ = {**KEYS, "S3_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the bucket is there."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._log.parent)
        client = boto3.client(
            "s3",
            endpoint_url=self.environ["S3_ENDPOINT_URL"],
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=5),
        )
        deadline = time.monotonic() + START_S
        while True:
            try:
                client.create_bucket(Bucket=BUCKET)
            except client.exceptions.BucketAlreadyOwnedByYou:
                break
            except (BotoCoreError, ClientError):
                assert self._process.poll() is None, self._log.read_text()[-3000:]
                assert time.monotonic() < deadline, self._log.read_text()[-3000:]
                time.sleep(0.1)
            else:
                break
        client.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def moto(folder: Path) -> Iterator[Server]:
    """Of the environment that `make test-clients` builds."""
    python = _ROOT / ".venv-clients" / "moto-server" / "bin" / "python"
    if not python.exists():
        pytest.fail("moto's server is not installed: `make test-clients` builds its environment")
    (port,) = _free_ports(1)
    server = Server([str(python), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, folder / "moto.log")
    yield from _running(server)


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """Of the extra `store-tests`."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent))
    if weed is None:
        pytest.fail("SeaweedFS is not installed: `make test-store` installs it")
    master, volume, filer, port = _free_ports(4)
    keys = [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}]
    identity = {"name": "tests", "credentials": keys, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "volumes").mkdir()
    command = [weed, "server", f"-dir={folder / 'volumes'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-volume.max=50"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={port}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=256", f"-s3.config={folder / 's3.json'}"]
    yield from _running(Server(command, port, folder / "weed.log"))


def _running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 30_000)
        if port not in found and all(_is_free(one) for one in (port, port + _GRPC)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
