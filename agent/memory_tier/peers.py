"""What a memory tier asks of other nodes' tiers, over their doors: what is there, take this replica, give me those bytes.

A replica travels as ``POST /v1/cp/checkpoints/{namespace}/{index}/{step}`` with its seal in ``Everstep-Seal``. A large one travels in stripes, by
several such requests at once (``stripes.py``). 201 says that all of it has come and that the digest was right: only then does the replica exist. Bytes are
asked for with ``scope=local``, so that a peer never asks others on our behalf.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from everstep.shards import PORT, Seal
from everstep.tiers import TierPeer, TierPlan

from .announced import Announcement
from .line import Answer, Broken, Line
from .seals import checked
from .stripes import HEADER as STRIPES
from .stripes import Stream, alone, attempted

STREAMS = 2
"""Measured on loopback: two streams carry 1.6 times what one does, four no more than two."""
CUT_FROM = 32 << 20
"""From this size on a shard travels by several streams."""
STRIPE = 4 << 20
"""While a peer reads one the kernel receives the next one for it: longer ones its sockets' buffers would not hold, and changing to another stream takes time."""
_PAGE = 4096
_MOST_IDLE = 4
_LONGEST_JSON = 64 << 20
_ASKS_FROM = 1 << 20
"""A body this large waits for 100 Continue: a peer without room says so before it has been sent for nothing."""


class PeerAway(Exception):
    """A peer could not be asked, or did not do it; whoever wanted something of it asks another one, and this one later."""

    def __init__(self, peer: TierPeer, why: str) -> None:
        super().__init__(f"the memory tier of node {peer.node} at {peer.address}: {why}")
        self.peer = peer
        self.why = why


class PeerRefused(PeerAway):
    """It is there, and said no: no room (507), not held (404), bytes that do not match their digest (422), busy (503)."""

    def __init__(self, peer: TierPeer, status: int, why: str) -> None:
        super().__init__(peer, f"{status} {why}")
        self.status = status


class Peers:
    """Other nodes' doors, for any number of threads. ``pushed_bytes`` and ``fetched_bytes`` count bodies."""

    def __init__(self, *, port: int = PORT, dial: Callable[[str, int], Line] = Line) -> None:
        self._port = port
        self._dial = dial
        self._lock = threading.Lock()
        self._secret = ""
        self._learn: Callable[[str, int, float], object] = lambda _namespace, _after, _at: None
        self._peers: dict[str, TierPeer] = {}
        self._idle: dict[str, list[Line]] = {}
        self._streams = ThreadPoolExecutor(2 * STREAMS, thread_name_prefix="everstep-stream")
        self.pushed_bytes = 0
        self.fetched_bytes = 0

    def know(self, plan: TierPlan) -> None:
        """From now on these are the peers. Connections to those that are gone, or that moved, are closed."""
        with self._lock:
            peers = {peer.node: peer for peer in plan.peers}
            moved = {node for node, peer in self._peers.items() if node not in peers or peers[node].address != peer.address}
            closed = [line for node in moved for line in self._idle.pop(node, [])]
            self._peers, self._secret = peers, plan.secret
        for line in closed:
            line.close()

    def watch(self, learn: Callable[[str, int, float], object]) -> None:
        """Called with (namespace, after, at) for each time that training went back, whenever a peer tells of it. It must not raise."""
        self._learn = learn

    def all(self) -> tuple[TierPeer, ...]:
        with self._lock:
            return tuple(self._peers.values())

    def inventory(self, peer: TierPeer, namespace: str | None = None) -> tuple[Seal, ...]:
        """The seals of all verified shards that a peer holds; of one namespace also where it knows that training went back. Raises PeerAway."""
        query = f"?{urlencode({'namespace': namespace})}" if namespace else ""
        told = self._json(peer, "GET", f"/v1/tier/inventory{query}")
        try:
            seals = tuple(checked(Seal.from_wire(one)) for one in told["seals"])
            for after, at in told.get("discards", ()) if namespace else ():
                self._learn(str(namespace), int(after), float(at))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PeerAway(peer, f"its inventory cannot be read: {error}") from error
        return seals

    def push(self, peer: TierPeer, seal: Seal, body: memoryview) -> None:
        """Makes a replica there: returns once it is sealed there. Raises PeerAway."""
        if body.nbytes < CUT_FROM:
            self._push(peer, seal, body, alone())
        else:
            with ThreadPoolExecutor(STREAMS, thread_name_prefix="everstep-push") as streams:  # its own: all of a push go at once
                for done in [streams.submit(self._push, peer, seal, body, stream) for stream in attempted(STREAMS, STRIPE)]:
                    done.result()
        with self._lock:
            self.pushed_bytes += body.nbytes

    def fetch(self, peer: TierPeer, seal: Seal, into: memoryview, start: int = 0) -> None:
        """Fills ``into`` with the bytes of a shard from ``start`` on; whoever fetches a whole one checks its digest. Raises PeerAway."""
        spans = [(start + first, start + last) for first, last in parts(into.nbytes)]
        rest = [self._streams.submit(self._fetch, peer, seal, into[a - start : b - start], a) for a, b in spans[1:]]
        try:
            a, b = spans[0]
            self._fetch(peer, seal, into[a - start : b - start], a)
        finally:
            failed = [one.exception() for one in rest]
        for error in failed:
            if error is not None:
                raise error
        with self._lock:
            self.fetched_bytes += into.nbytes

    def announce(self, peer: TierPeer, told: Announcement) -> None:
        """Tells that a step is complete. Raises PeerAway."""
        self._json(peer, "POST", "/v1/tier/complete", json.dumps(asdict(told)).encode())

    def discard(self, peer: TierPeer, namespace: str, after: int, at: float) -> None:
        """Tells that training went back: steps after ``after`` that were written until ``at`` are given up. Raises PeerAway."""
        self._json(peer, "POST", "/v1/tier/discard", json.dumps({"namespace": namespace, "after": after, "at": at}).encode())

    def delete(self, peer: TierPeer, path: str) -> None:
        """Has it let go of a namespace or a shard, by its path at the door. Raises PeerAway; not when it holds nothing of it."""
        try:
            self._json(peer, "DELETE", path)
        except PeerRefused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise

    def close(self) -> None:
        """A question that is still under way closes its connection itself: nobody is known any more."""
        self._streams.shutdown(cancel_futures=True)
        with self._lock:
            idle, self._idle, self._peers = self._idle, {}, {}
        for line in (line for lines in idle.values() for line in lines):
            line.close()

    # ------------------------------------------------------------------------------------------------ one request each

    def _push(self, peer: TierPeer, seal: Seal, body: memoryview, stream: Stream) -> None:
        """What one stream carries; returns once the whole is sealed there. Raises PeerAway."""
        stripes = [body[start:end] for start, end in stream.spans(body.nbytes)]
        nbytes = stream.nbytes(body.nbytes)
        headers = {"Everstep-Seal": json.dumps(seal.to_wire(), separators=(",", ":")), "Content-Length": str(nbytes)}
        if stream.attempt.streams > 1:
            headers[STRIPES] = str(stream)
        if nbytes >= _ASKS_FROM:
            headers["Expect"] = "100-continue"
        answer, told = self._asked(peer, lambda line: self._posted(line, _target(seal), headers, stripes), _whole_text)
        if answer.status != HTTPStatus.CREATED:
            raise PeerRefused(peer, answer.status, _why(told))

    def _fetch(self, peer: TierPeer, seal: Seal, into: memoryview, start: int) -> None:
        headers = {"Range": f"bytes={start}-{start + into.nbytes - 1}"} if into.nbytes else {}

        def speak(line: Line) -> Answer:
            line.ask("GET", f"{_target(seal)}?scope=local&save={quote(seal.save, safe='')}", {**headers, **self._bearer()})
            return line.hear()

        def read(line: Line, answer: Answer) -> bytes:
            if answer.status not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT} or not self._is_it(answer, seal, into.nbytes):
                return _whole_text(line, answer)
            line.read_into(into)
            return b""

        answer, told = self._asked(peer, speak, read)
        if answer.status not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
            raise PeerRefused(peer, answer.status, _why(told))
        if not self._is_it(answer, seal, into.nbytes):
            raise PeerRefused(peer, HTTPStatus.NOT_FOUND, "it holds other bytes under that name by now")

    @staticmethod
    def _is_it(answer: Answer, seal: Seal, nbytes: int) -> bool:
        return answer.headers.get("everstep-digest") == seal.digest and answer.nbytes == nbytes

    def _json(self, peer: TierPeer, method: str, target: str, body: bytes = b"") -> dict[str, Any]:
        def speak(line: Line) -> Answer:
            headers = {"Content-Length": str(len(body)), "Content-Type": "application/json"} if method == "POST" else {}
            line.ask(method, target, {**headers, **self._bearer()})
            line.send(memoryview(body), is_stale=True)
            return line.hear()

        answer, told = self._asked(peer, speak, _whole_text)
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise PeerRefused(peer, answer.status, _why(told))
        try:
            found = json.loads(told or b"{}")
        except ValueError as error:
            raise PeerAway(peer, f"it answered {target} with something that is not JSON") from error
        return found if isinstance(found, dict) else {}

    def _posted(self, line: Line, target: str, headers: Mapping[str, str], body: Sequence[memoryview]) -> Answer:
        line.ask("POST", target, {**headers, **self._bearer()})
        if "Expect" in headers:
            answer = line.hear()
            if answer.status != HTTPStatus.CONTINUE:  # it has it already, or does not want it; the body is never sent
                return replace(answer, headers={**answer.headers, "connection": "close"})
        for part in body:
            line.send(part, is_stale="Expect" not in headers)
        return line.hear()

    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._secret}"} if self._secret else {}

    # ------------------------------------------------------------------------------------------------ connections

    def _asked(
        self, peer: TierPeer, speak: Callable[[Line], Answer], read: Callable[[Line, Answer], bytes]
    ) -> tuple[Answer, bytes]:
        """One exchange. A connection that the peer closed while it was idle is no fault: once more, on a new one. Raises PeerAway."""
        while True:
            line, is_fresh = self._line(peer)
            try:
                answer = speak(line)
                told = read(line, answer)
            except Broken as error:
                line.close()
                if error.is_stale and not is_fresh:
                    continue
                raise PeerAway(peer, str(error)) from error
            except BaseException:
                line.close()
                raise
            self._keep(peer, line, answer)
            return answer, told

    def _line(self, peer: TierPeer) -> tuple[Line, bool]:
        with self._lock:
            idle = self._idle.get(peer.node)
            if idle:
                return idle.pop(), False
        try:
            return self._dial(peer.address, self._port), True
        except Broken as error:
            raise PeerAway(peer, str(error)) from error

    def _keep(self, peer: TierPeer, line: Line, answer: Answer) -> None:
        with self._lock:
            known = self._peers.get(peer.node)
            idle = self._idle.setdefault(peer.node, [])
            is_kept = known == peer and len(idle) < _MOST_IDLE and answer.headers.get("connection", "").lower() != "close"
            if is_kept and answer.status < HTTPStatus.BAD_REQUEST:  # after a refusal the peer may still wait for a body
                idle.append(line)
                return
        line.close()


def parts(nbytes: int) -> list[tuple[int, int]]:
    """The half-open spans that are fetched at once: together all of so many bytes, cut at pages; of a small body all in one."""
    count = STREAMS if nbytes >= CUT_FROM else 1
    cuts = [nbytes * part // count // _PAGE * _PAGE for part in range(count)]
    return list(zip(cuts, [*cuts[1:], nbytes], strict=True))


def _target(seal: Seal) -> str:
    return f"/v1/cp/checkpoints/{quote(seal.namespace, safe='')}/{seal.index}/{seal.step}"


def _whole_text(line: Line, answer: Answer) -> bytes:
    if answer.nbytes > _LONGEST_JSON:
        message = f"an answer of {answer.nbytes} bytes where a text was expected"
        raise Broken(message)
    return line.read(answer.nbytes)


def _why(told: bytes) -> str:
    return " ".join(told[:300].decode("utf-8", "replace").split()) or "without a word"
