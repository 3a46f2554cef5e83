"""A real server on a real database, and real clients. One server process's worth of set-up a test session, an empty database a test."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import uvicorn
from botocore.config import Config

from api.app import create_app
from api.settings import Bootstrap, Settings

KEY_ID = "AKIAEVERSTEPTEST0001"
SECRET = "s3cret/of+the/test"
TOKEN = "token-of-the-test"
START_S = 20.0


@dataclass(frozen=True)
class Server:
    """A running API: its address, and how it was set up."""

    url: str
    settings: Settings

    def client(self, **options: Any) -> Any:
        """An unmodified boto3 client of SageMaker. One attempt, so that a wrong 5xx fails the test instead of being tried again."""
        given = {
            "endpoint_url": self.url,
            "region_name": "us-east-1",
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
            "config": Config(retries={"total_max_attempts": 1}),
        } | options
        return boto3.session.Session().client("sagemaker", **given)


def settings_for(database_url: str, broker_url: str = "redis://127.0.0.1:1/0") -> Settings:
    return Settings(
        database_url=database_url,
        broker_url=broker_url,
        master_key=base64.b64decode("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
        bootstrap=Bootstrap(KEY_ID, SECRET, TOKEN),
    )


@pytest.fixture
def serve() -> Iterator[Callable[[Settings], Server]]:
    """``serve(settings)`` starts uvicorn in a thread, with the application as the factory makes it."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def serve(settings: Settings) -> Server:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(settings), log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        running.append((server, thread))
        deadline = time.monotonic() + START_S
        while not server.started:
            assert thread.is_alive(), "the server ended at its start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.01)
        return Server(f"http://127.0.0.1:{listener.getsockname()[1]}", settings)

    yield serve
    for server, thread in running:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def server(serve: Callable[[Settings], Server], database_url: str) -> Server:
    return serve(settings_for(database_url))


@pytest.fixture
def sagemaker(server: Server) -> Iterator[Any]:
    client = server.client()
    yield client
    client.close()
