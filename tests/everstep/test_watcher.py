"""The watcher goes on whatever the agent says, and whatever what it calls for fails with."""

from __future__ import annotations

import json
import logging
import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.protocol import Generation
from everstep.resilience.watcher import Watcher

PATIENCE_S = 20.0
SECRET = "a-token-of-the-job"
UNREADABLE = [
    b"nonsense",
    b"[1, 2]",
    b"7",
    b"\xff\xfe",
    b'{"type": "generation"}',
    b'{"type": "generation", "generation": {"token": "%s"}}' % SECRET.encode(),
    b'{"type": "generation", "generation": 3}',
    b'{"type": "notice"}',
    b'{"type": "notice", "notice": [1]}',
]


class Agent:
    """The agent's end of the socket: each connection is greeted, and then told lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen()
        self._server.settimeout(PATIENCE_S)

    def accept(self) -> socket.socket:
        connection, _ = self._server.accept()
        connection.settimeout(PATIENCE_S)
        assert json.loads(connection.makefile().readline())["type"] == "hello"
        return connection

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path / "a")
    yield agent
    agent.close()


def generation(number: int) -> bytes:
    told = Generation("job", number, "start", (), "127.0.0.1:1", SECRET).to_wire()
    return json.dumps({"type": "generation", "generation": told}).encode()


def notice(deadline: float) -> bytes:
    return json.dumps({"type": "notice", "notice": {"id": 1, "why": "spot", "deadline": deadline}}).encode()


def tell(connection: socket.socket, *lines: bytes) -> None:
    connection.sendall(b"".join(line + b"\n" for line in lines))


def test_a_message_that_cannot_be_read_is_left_out_and_the_next_one_is_heard(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = Watcher(str(agent.path), "p-1", lambda _: None)
    with agent.accept() as connection:
        for number, line in enumerate(UNREADABLE, start=1):
            tell(connection, line, generation(number))
            assert watcher.wait_newer(number - 1, PATIENCE_S), line
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [f"{len(line)} bytes" in words for line, words in zip(UNREADABLE, said, strict=True)] == [True] * len(UNREADABLE)
    assert SECRET not in caplog.text


def test_a_fence_that_could_not_be_fired_is_fired_when_the_generation_is_told_again(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    fired: queue.Queue[int] = queue.Queue()

    def fire(number: int) -> None:
        fired.put(number)
        if number == 2 and fired.qsize() == 2:
            message = "the accelerator does not let go"
            raise RuntimeError(message)

    watcher = Watcher(str(agent.path), "p-1", fire)
    with agent.accept() as connection:
        tell(connection, generation(1), generation(2))
        assert watcher.wait_newer(1, PATIENCE_S), "the training thread is told all the same"
        with agent.accept() as again:
            tell(again, generation(2), generation(2), generation(3))
            assert watcher.wait_newer(2, PATIENCE_S)
    assert [fired.get(timeout=PATIENCE_S) for _ in range(4)] == [1, 2, 2, 3]
    assert "the accelerator does not let go" in caplog.text


def test_a_notice_that_could_not_be_followed_stands_and_is_followed_when_it_is_told_again(agent: Agent) -> None:
    called: queue.Queue[Any] = queue.Queue()
    watcher = Watcher(str(agent.path), "p-1", lambda _: None)

    def save_soon() -> None:
        called.put(watcher.notice)
        if called.qsize() == 1:
            raise KeyError

    watcher.on_notice = save_soon
    with agent.accept() as connection:
        tell(connection, notice(1_000.0))
        with agent.accept() as again:
            tell(again, notice(1_000.0), notice(1_000.0), generation(1))
            assert watcher.wait_newer(0, PATIENCE_S)
    assert [found.deadline for found in called.queue] == [1_000.0, 1_000.0]
    assert watcher.notice is not None
