"""moto's EC2 behind a door that behaves as the real one does where moto does not, and breaks down when it is told to.

moto knows neither client tokens, nor capacity, nor volumes that are in use, nor the replacement of a root volume, and shows what it has at once.
The door adds these, and: listings that are late, calls that are carried out and never answered or delivered twice, and throttling.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import RLock, Thread
from typing import Any, Self
from urllib.parse import parse_qs, urlencode
from xml.etree import ElementTree as ET

import boto3
from botocore.config import Config

SPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
START_S = 60.0
KEYS = {"aws_access_key_id": "tests", "aws_secret_access_key": "secret-of-tests"}
REGION = "us-east-1"
IMAGE = "ami-12c6146b"
"""One that moto has from the start."""

Pool = tuple[str, str, str]
"""Type, zone, market."""


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """The address of a server of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{url}/moto-api/", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, (folder / "moto.log").read_text()[-3000:]
                assert time.monotonic() < deadline, "moto does not start"
                time.sleep(0.05)
        _warm(url)
        yield url
    finally:
        process.kill()
        process.wait()


def _warm(url: str) -> None:
    """Its first answer takes long: it reads what EC2 has of everything."""
    authorization = "AWS4-HMAC-SHA256 Credential=tests/20310101/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=none"
    wish = urlencode({"Action": "DescribeInstances", "Version": "2016-11-15"}).encode()
    request = urllib.request.Request(url, data=wish, headers={"Authorization": authorization})
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        answer.read()


@cache
def client(url: str, *, tries: int = 1) -> Any:
    """Made once for all tests: its model is large."""
    retries: Any = {"total_max_attempts": tries, "mode": "standard"}
    config = Config(connect_timeout=5, read_timeout=30, retries=retries)
    return _session().client("ec2", region_name=REGION, endpoint_url=url, config=config, **KEYS)


@cache
def _session() -> boto3.Session:
    return boto3.Session()


@dataclass
class Front:
    """``late`` and ``ends_after`` are in seconds of ``now``: new instances are listed so much later, and ended ones are ending for so long.

    ``limits`` says how many instances there can be, by type, zone and market; ``total`` how many in all. ``throttled`` is how many of the next calls
    are, ``lost`` how many calls of an action are carried out and not answered, ``doubled`` how many are delivered twice, as if the token was forgotten.
    ``errors`` is what the next calls of an action are answered with instead: a code and its words. ``prices`` are type, zone, time and dollars; ``asked`` is what has been asked for.
    ``on_call`` is told ``before`` each call, and ``after`` it has been carried out and before it is answered.
    """

    moto_url: str
    now: Callable[[], float] = time.monotonic
    late: float = 0.0
    ends_after: float = 0.0
    total: int | None = None
    limits: dict[Pool, int] = field(default_factory=dict)
    throttled: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    doubled: Counter[str] = field(default_factory=Counter)
    errors: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    prices: list[tuple[str, str, str, str]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    on_call: Callable[[str], None] = lambda _when: None
    living: dict[str, Pool] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    """Which start instances are at, by what was last written on them."""
    _shown_at: dict[str, float] = field(default_factory=dict)
    _ended_at: dict[str, float] = field(default_factory=dict)
    _tokens: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    _zones: dict[str, str] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)

    def asked_for(self, action: str) -> list[dict[str, str]]:
        return [wish for name, wish in self.asked if name == action]

    def answer(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes] | None:
        """None: it was carried out, and nobody will hear of it. One call at a time, so that what is counted is right."""
        wish = {name: values[0] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        action = wish["Action"]
        with self._lock:
            self.asked.append((action, wish))
            if self.throttled > 0:
                self.throttled -= 1
                return 503, _error("RequestLimitExceeded", "Request limit exceeded.")
            if self.errors.get(action):
                return 400, _error(*self.errors[action].pop(0))
            self.on_call("before")
            answer = self._carry_out(action, wish, body, headers)
            self.on_call("after")
            if self.doubled[action] > 0:
                self.doubled[action] -= 1
                self._tokens.clear()
                self._carry_out(action, wish, body, headers)
            if self.lost[action] > 0:
                self.lost[action] -= 1
                return None
        return answer

    def _carry_out(self, action: str, wish: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        own = {
            "RunInstances": self._run,
            "DescribeInstances": self._list,
            "TerminateInstances": self._terminate,
            "CreateTags": self._tag,
            "AttachVolume": self._attach_volume,
            "AttachNetworkInterface": self._attach_interface,
            "CreateReplaceRootVolumeTask": self._replace_root,
            "DescribeSpotPriceHistory": self._tell_prices,
        }.get(action)
        return self._ask(body, headers) if own is None else own(wish, body, headers)

    def _ask(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        request = urllib.request.Request(self.moto_url, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def _look(self, headers: dict[str, str], **wish: str) -> ET.Element:
        return ET.fromstring(self._ask(urlencode({**wish, "Version": "2016-11-15"}).encode(), headers)[1])

    def _run(self, wish: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        token = wish.get("ClientToken", "")
        asked = json.dumps({name: value for name, value in sorted(wish.items()) if name != "ClientToken"})
        if token in self._tokens:
            before, answer = self._tokens[token]
            if before != asked:
                return 400, _error("IdempotentParameterMismatch", "The client token was used with other parameters.")
            return 200, answer
        market = wish.get("InstanceMarketOptions.MarketType", "on-demand")
        zone = wish.get("Placement.AvailabilityZone") or self._zone(wish.get("SubnetId"), headers)
        pool = (wish["InstanceType"], zone, market)
        if self._is_full(pool):
            return 400, _error("InsufficientInstanceCapacity", f"We currently do not have sufficient {pool[0]} capacity in {zone}.")
        status, answer = self._ask(body, headers)
        if status == 200:
            for found in ET.fromstring(answer).iterfind(".//{*}instanceId"):
                self.living[str(found.text)] = pool
                self._shown_at[str(found.text)] = self.now() + self.late
            self._tokens[token] = (asked, answer)
        return status, answer

    def _is_full(self, pool: Pool) -> bool:
        of_pool = sum(one == pool for one in self.living.values())
        return of_pool >= self.limits.get(pool, 1 << 30) or (self.total is not None and len(self.living) >= self.total)

    def _zone(self, subnet: str | None, headers: dict[str, str]) -> str:
        if subnet is None:
            return f"{REGION}a"
        if subnet not in self._zones:
            found = self._look(headers, Action="DescribeSubnets", **{"SubnetId.1": subnet})
            self._zones[subnet] = next(str(one.text) for one in found.iterfind(".//{*}availabilityZone"))
        return self._zones[subnet]

    def _list(self, wish: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """moto ends instances at once: those that are ending here have ended there."""
        states = next((name[: -len("Name")] for name, value in wish.items() if value == "instance-state-name"), None)
        ending = {instance_id for instance_id, until in self._ended_at.items() if self.now() < until}
        if states is not None and ending:
            asked = sum(name.startswith(f"{states}Value.") for name in wish)
            body = urlencode({**wish, f"{states}Value.{asked + 1}": "terminated"}).encode()
        status, answer = self._ask(body, headers)
        if status != 200:
            return status, answer
        root = ET.fromstring(answer)
        for reservation in root.findall("{*}reservationSet/{*}item"):
            for instance in reservation.findall("{*}instancesSet/{*}item"):
                instance_id = str(instance.findtext("{*}instanceId"))
                has_ended = instance.findtext("{*}instanceState/{*}name") == "terminated"
                is_late = self.now() < self._shown_at.get(instance_id, 0.0)
                if is_late or (states is not None and has_ended and instance_id not in ending):
                    root.find("{*}reservationSet").remove(reservation)  # type: ignore[union-attr]
                elif has_ended and instance_id in ending:
                    _set(instance, "instanceState/code", "32")
                    _set(instance, "instanceState/name", "shutting-down")
        return status, ET.tostring(root)

    def _terminate(self, wish: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        status, answer = self._ask(body, headers)
        if status == 200:
            for name, instance_id in wish.items():
                if name.startswith("InstanceId."):
                    self.living.pop(instance_id, None)
                    self._ended_at.setdefault(instance_id, self.now() + self.ends_after)
        return status, answer

    def shown(self) -> set[str]:
        """The instances that live and are listed by now."""
        with self._lock:
            return {instance_id for instance_id in self.living if self.now() >= self._shown_at[instance_id]}

    def _tag(self, wish: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        for name, key in wish.items():
            if key == "everstep:started":
                self.started[wish["ResourceId.1"]] = int(wish[name.replace("Key", "Value")])
        return self._ask(body, headers)

    def _attach_volume(self, wish: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        found = self._look(headers, Action="DescribeVolumes", **{"VolumeId.1": wish["VolumeId"]})
        if any(one.text == "in-use" for one in found.iterfind(".//{*}status")):
            return 400, _error("VolumeInUse", f"{wish['VolumeId']} is already attached to an instance")
        return self._ask(body, headers)

    def _attach_interface(self, wish: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        found = self._look(headers, Action="DescribeNetworkInterfaces", **{"NetworkInterfaceId.1": wish["NetworkInterfaceId"]})
        if any(one.text == "in-use" for one in found.iterfind(".//{*}status")):
            return 400, _error("InvalidNetworkInterface.InUse", f"Interface: {wish['NetworkInterfaceId']} in use.")
        return self._ask(body, headers)

    def _tell_prices(self, wish: dict[str, str], _body: bytes, _headers: dict[str, str]) -> tuple[int, bytes]:
        """By pages; moto has one price for all."""
        start, size = int(wish.get("NextToken") or 0), int(wish["MaxResults"])
        names = ("instanceType", "availabilityZone", "timestamp", "spotPrice")
        items = ["".join(f"<{name}>{told}</{name}>" for name, told in zip(names, price, strict=True)) for price in self.prices]
        page = "".join(f"<item>{item}</item>" for item in items[start : start + size])
        following = f"<nextToken>{start + size}</nextToken>" if start + size < len(items) else "<nextToken/>"
        answer = f'<DescribeSpotPriceHistoryResponse xmlns="{SPACE}"><spotPriceHistorySet>{page}</spotPriceHistorySet>{following}'
        return 200, f"{answer}</DescribeSpotPriceHistoryResponse>".encode()

    def _replace_root(self, wish: dict[str, str], _body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        status, answer = self._ask(urlencode({"Action": "DescribeInstances", "InstanceId.1": wish["InstanceId"]}).encode(), headers)
        if status != 200:
            return status, answer
        task = f"<replaceRootVolumeTaskId>replacevol-0123456789abcdef0</replaceRootVolumeTaskId><instanceId>{wish['InstanceId']}</instanceId>"
        task += "<taskState>pending</taskState>"
        text = f'<CreateReplaceRootVolumeTaskResponse xmlns="{SPACE}"><replaceRootVolumeTask>{task}</replaceRootVolumeTask>'
        return 200, f"{text}</CreateReplaceRootVolumeTaskResponse>".encode()


def _set(instance: ET.Element, path: str, text: str) -> None:
    found = instance.find("/".join(f"{{*}}{name}" for name in path.split("/")))
    assert found is not None
    found.text = text


def _error(code: str, message: str) -> bytes:
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return f"<Response><Errors>{error}</Errors><RequestID>request-of-tests</RequestID></Response>".encode()


class Door:
    """A door that stays, for clients that do; who stands behind it changes with each test."""

    front: Front

    @contextmanager
    def open(self) -> Iterator[Self]:
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"door": self}))
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may have been killed meanwhile; everything else is told."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    door: Door
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kept = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"host", "content-length", "connection", "expect"}
        }
        answer = self.door.front.answer(body, kept)
        if answer is None:
            self.close_connection = True
            return
        status, text = answer
        self.send_response(status)
        self.send_header("Content-Type", "text/xml;charset=UTF-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing: what has been asked is in ``asked``."""
