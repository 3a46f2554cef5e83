"""The cloud's door: the provider's verbs, and those of a rehearsal, as JSON over HTTP on loopback, for whoever has the token.

One request a connection. Where the door is, is written in one piece to a private file once it is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workers.fleet.fleet import Fleet
from workers.fleet.http import read_request
from workers.fleet.scenario import Blow, Strike
from workers.providers import simulated_wire as wire
from workers.providers.base import HostRef, ProviderError, Volume
from workers.providers.simulated_fleet import DOOR

log = logging.getLogger(__name__)
_LONGEST_S = 10.0
_WORDS = MappingProxyType({200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict"})


class Door:
    """``directory`` is made if it is not there, and is the owner's alone."""

    def __init__(self, fleet: Fleet, directory: Path, token: str) -> None:
        self._fleet = fleet
        self._directory = directory
        self._token = token
        self._server: asyncio.Server | None = None

    async def open(self, port: int = 0) -> str:
        """Returns the address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        late_s = self._fleet.cloud.settles_within.total_seconds()
        self._write({"url": url, "token": self._token, "settles_within_s": late_s, "pid": os.getpid()})
        return url

    async def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._directory / DOOR).unlink()
        if self._server is not None:
            self._server.close()

    def _write(self, told: dict[str, Any]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._directory / f".{DOOR}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(told, file)
        draft.replace(self._directory / DOOR)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_LONGEST_S):
                path, headers, body = await read_request(reader)
                status, told = self._answer(path, headers, body)
                content = json.dumps(told).encode()
                head = f"HTTP/1.1 {status} {_WORDS[status]}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + content)
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.info("a call at the door broke off: %s", type(error).__name__)
        finally:
            writer.close()

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        shown = headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            return 401, _error("not the token of this fleet")
        verb = _VERBS.get(path.strip("/"))
        if verb is None:
            return 404, _error(f"no such verb; there are: {', '.join(_VERBS)}")
        self._fleet.timeline.advance()
        try:
            return 200, {"answer": verb(self._fleet, _object(body))}
        except ProviderError as error:
            return 409, {"error": wire.error_to_wire(error)}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return 400, _error(f"{path.strip('/')}: {type(error).__name__}: {error}")


def _object(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        message = "the body must be a JSON object"
        raise ValueError(message)  # noqa: TRY004  (what is wrong is the text)
    return told


def _error(message: str) -> dict[str, Any]:
    return {"error": {"kind": ProviderError.__name__, "message": message}}


def _ref(told: Mapping[str, Any]) -> HostRef:
    return HostRef(**told["ref"])


def _restart(verb: str) -> Callable[[Fleet, dict[str, Any]], Any]:
    return lambda fleet, told: wire.seen_to_wire(getattr(fleet.cloud, verb)(_ref(told), wire.spec_from_wire(told["spec"])))


def _prices(fleet: Fleet, told: dict[str, Any]) -> Any:
    found = fleet.cloud.spot(told["instance_types"], since=datetime.fromisoformat(told["since"]))
    return [
        {
            "instance_type": price.instance_type,
            "zone": price.zone,
            "at": price.at.isoformat(),
            "per_hour": str(price.per_hour),
        }
        for price in found
    ]


def _on_demand(fleet: Fleet, told: dict[str, Any]) -> str | None:
    found = fleet.cloud.on_demand(told["instance_type"])
    return None if found is None else str(found)


def _strike(fleet: Fleet, told: dict[str, Any]) -> int:
    blow = Blow(told["blow"])
    return fleet.cloud.strike(
        Strike(blow, 0.0, float(told.get("share", 0)), int(told.get("hosts", 0)), float(told.get("seconds", 0)))
    )


_VERBS: Mapping[str, Callable[[Fleet, dict[str, Any]], Any]] = MappingProxyType(
    {
        "launch": lambda fleet, told: wire.seen_to_wire(fleet.cloud.launch(wire.spec_from_wire(told["spec"]))),
        "describe": lambda fleet, told: wire.seen_to_wire(fleet.cloud.describe(_ref(told))),
        "hosts": lambda fleet, _: [wire.seen_to_wire(host) for host in fleet.cloud.hosts()],
        "release": lambda fleet, told: fleet.cloud.release(_ref(told)),
        "reboot": _restart("reboot"),
        "reimage": _restart("reimage"),
        "attach_volume": lambda fleet, told: fleet.cloud.attach_volume(_ref(told), Volume(**told["volume"])),
        "detach_volume": lambda fleet, told: fleet.cloud.detach_volume(_ref(told), told["volume_id"]),
        "attach_interface": lambda fleet, told: fleet.cloud.attach_interface(_ref(told), told["interface_id"]),
        "spot": _prices,
        "on_demand": _on_demand,
        "counts": lambda fleet, _: fleet.counts(),
        "strike": _strike,
    }
)
