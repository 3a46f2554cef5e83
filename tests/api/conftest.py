"""A real server on a real database, an empty one for each test, and real clients."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn

from api.app import create_app
from api.settings import Settings
from models.clock import Clock
from tests.api.serving import Server, settings_for

START_S = 20.0
Serve = Callable[..., Server]


@contextmanager
def serving(settings: Settings, clock: Clock | None = None) -> Iterator[Server]:
    """uvicorn in a thread, with the application as the factory makes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(settings, clock)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=2, proxy_headers=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + START_S
    while not server.started:
        assert thread.is_alive(), "the server ended at its start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.005)
    try:
        yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", settings)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(settings, clock)`` starts a server that runs until the test's end."""
    with ExitStack() as running:
        yield lambda *given: running.enter_context(serving(*given))


@pytest.fixture
def server(serve: Serve, database_url: str) -> Server:
    return serve(settings_for(database_url))


@pytest.fixture
def sagemaker(server: Server) -> Iterator[Any]:
    client = server.client()
    yield client
    client.close()
