"""The rank's side of the rendezvous: a client that gives way at once, and a ``torch.distributed.Store`` on top of it.

No TCPStore anywhere: its waits cannot be left, and its shared server was seen to stop answering some clients for a minute.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from everstep.errors import RendezvousFailed, RendezvousRefused
from everstep.gathered import unpack
from everstep.protocol import Generation

from .fence import Fence

_SLICE_S = 0.02
_LONGEST_READ = 1 << 16


class Superseded(Exception):
    """A newer generation exists: this meeting will not take place."""


class RendezvousClient:
    """One connection to the generation's space. Calls may come from several threads; they take turns."""

    def __init__(self, generation: Generation, is_superseded: Callable[[], bool], fence: Fence, patience_s: float) -> None:
        self._generation = generation
        self._is_superseded = is_superseded
        self._fence = fence
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._unread = b""

    def request(self, op: str, **members: Any) -> Any:
        """Raises Superseded, RendezvousRefused or RendezvousFailed."""
        with self._lock:
            deadline = time.monotonic() + self._patience_s
            asked = {"op": op, **members}
            return self._exchange([asked], deadline) if self._connection is not None else self._opened(asked, deadline)

    def gather(self, name: str, rank: int, count: int, value: dict[str, Any]) -> list[dict[str, Any]]:
        """What all ``count`` members say under the name, in order of rank; waits for all. Raises as ``request``."""
        packed = self.request("gather", name=name, rank=rank, count=count, value=value)
        try:
            return unpack(packed)
        except ValueError as error:
            raise RendezvousFailed(self._said(str(error))) from error

    def meet(self, name: str, rank: int, count: int) -> None:
        """Waits until all ``count`` members have come here. Raises as ``request``."""
        self.request("meet", name=name, rank=rank, count=count)

    def give_way(self) -> None:
        """Raises Superseded when a newer generation exists: for work between two requests."""
        if self._is_superseded():
            raise Superseded

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self, asked: dict[str, Any], deadline: float) -> Any:
        """The first request goes with the opening: whoever is let in has its answer a round sooner."""
        self._connect(deadline)
        opening = {
            "op": "open",
            "job": self._generation.job,
            "generation": self._generation.number,
            "token": self._generation.token,
        }
        try:
            return self._exchange([opening, asked], deadline)
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline: float) -> None:
        host, _, port = self._generation.rendezvous.rpartition(":")
        while self._connection is None:
            self._give_way(deadline)
            try:
                connection = socket.create_connection((host, int(port)), timeout=1.0)
            except OSError:
                time.sleep(_SLICE_S)
                continue
            self._connection = self._fence.exempt(connection)
        self._unread = b""

    def _exchange(self, messages: Sequence[dict[str, Any]], deadline: float) -> Any:
        """Sends them at once. The answer to the last one; the first that is an error is raised."""
        value: Any = None
        try:
            self._connected().sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
            for _ in messages:
                value = self._answer(deadline)
        except (OSError, ValueError) as error:
            self.close()
            raise RendezvousFailed(self._said(str(error))) from error
        return value

    def _answer(self, deadline: float) -> Any:
        answer = json.loads(self._line(deadline))
        if "bytes" in answer:
            return self._bytes(int(answer["bytes"]), deadline)
        if answer.get("error") == "superseded":
            raise Superseded
        if "error" in answer:
            raise RendezvousRefused(self._said(f"{answer['error']}: {answer.get('message', '')}"))
        return answer["value"]

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._unread:
            self._read(deadline)
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _bytes(self, count: int, deadline: float) -> bytes:
        while len(self._unread) < count:
            self._read(deadline)
        read, self._unread = self._unread[:count], self._unread[count:]
        return read

    def _read(self, deadline: float) -> None:
        readable, _, _ = select.select([self._connected()], [], [], _SLICE_S)
        if not readable:
            self._give_way(deadline)
            return
        received = self._connected().recv(_LONGEST_READ)
        if not received:
            raise ConnectionResetError
        self._unread += received

    def _give_way(self, deadline: float) -> None:
        if self._is_superseded():
            self.close()
            raise Superseded
        if time.monotonic() > deadline:
            self.close()
            raise RendezvousFailed(self._said(f"no answer within {self._patience_s:.0f} s"))

    def _said(self, words: str) -> str:
        return f"rendezvous at {self._generation.rendezvous}: {words}"

    def _connected(self) -> socket.socket:
        if self._connection is None:
            raise ConnectionResetError
        return self._connection


class RendezvousStore(dist.Store):
    """What torch and gloo see. Values are bytes; every wait is bounded by the client's patience and left on a newer generation."""

    def __init__(self, client: RendezvousClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: str | bytes) -> None:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._client.request("set", key=key, value=base64.b64encode(raw).decode())

    def get(self, key: str) -> bytes:
        return base64.b64decode(self._client.request("get", key=key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [base64.b64decode(value) for value in self._client.request("get-all", keys=list(keys))]

    def add(self, key: str, amount: int) -> int:
        return int(self._client.request("add", key=key, amount=amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self._client.request("check", keys=list(keys)))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002, the client's patience is shorter
        self._client.request("wait", keys=list(keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._client.request("delete", key=key))

    def set_timeout(self, timeout: timedelta) -> None:
        """The patience is the client's; torch would set half an hour here."""
