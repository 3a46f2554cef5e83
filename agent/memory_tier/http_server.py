"""The server under the door: a thread for each connection, blocking, bodies received into and sent out of the memory that they live in.

Whoever connects may be slow, silent or gone, and must cost no more than its own connection: a body that stalls or trickles is cut, a head must
come in time, idle connections are kept long (a client that never retries loses a save when its pooled connection is closed between two saves),
their number is bounded, and one more is told so at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from agent.memory_tier.http import LONGEST_HEAD, Refusal, Request, parse, response_head

_LOG = logging.getLogger(__name__)
_CHUNK = 4 << 20
"""Bytes asked of the socket at once: large enough that calls cost nothing, small enough that a stall is seen in time."""
_CACHED = 256 << 10
"""As many are received at once: whoever looks at them then finds them, and the kernel's buffers of them fit beside them, in a processor's own cache."""
_SMALL = 64 << 10
"""An unread body up to so many bytes is read and thrown away, so that the connection can go on."""
_OWN = "this machine"
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Limits:
    """Seconds, bytes and bytes a second. In ``stall_s`` a body must move ``least_rate * stall_s`` bytes, or end.

    What connects from this machine itself is limited apart: no stranger, and no number of peers, keeps the node's own processes out. They are also
    those whose idle connections must be kept; other nodes' tiers take a closed one for no fault.
    """

    idle_s: float = 900.0
    idle_elsewhere_s: float = 60.0
    head_s: float = 20.0
    stall_s: float = 30.0
    least_rate: float = 64 << 10
    linger_s: float = 1.0
    most_own: int = 512
    most_others: int = 2048
    most_of_a_stranger: int = 64
    most_refused: int = 32


class Torn(Exception):
    """The other end went away, or was too slow, in the middle of a body."""


class Exchange:
    """One request and its answer. ``source`` is the other end's address; ``route`` is set by whoever answers, for the metrics."""

    def __init__(self, line: _Line, request: Request) -> None:
        self.request = request
        self.source = line.source
        self.route = "unknown"
        self.status: int = 0
        self.received = 0
        self.sent = 0
        self._line = line
        self._owed = request.length
        self._is_begun = self._is_invited = False
        self._keeps_alive = request.keeps_alive

    def receive_into(self, view: memoryview, seen: Callable[[memoryview], object] = lambda _: None) -> None:
        """Fills ``view`` with the next bytes of the body. Raises Torn. A client that waits to be told to send it is told, also by an empty ``view``.

        ``seen`` is given each piece of it as it has come, in order, while it is in a processor's cache.
        """
        if len(view) > self._owed:
            message = f"{len(view)} bytes of a body that has {self._owed} left"
            raise ValueError(message)
        if self.request.expects_continue and not self._is_invited and self._owed and not self._is_begun:
            self._is_invited = True
            self._line.send(memoryview(b"HTTP/1.1 100 Continue\r\n\r\n"))
        self._line.receive_into(view, seen)
        self.received += len(view)
        self._owed -= len(view)

    def receive(self, most: int) -> bytes:
        """A small body, whole. Raises Refusal, Torn."""
        if self._owed > most:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of {self._owed} bytes, where {most} are allowed")
        body = bytearray(self._owed)
        self.receive_into(memoryview(body))
        return bytes(body)

    def answer(self, status: HTTPStatus, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.begin(status, headers or {}, len(body))
        self.send(memoryview(body))

    def answer_json(self, status: HTTPStatus, value: object, headers: Mapping[str, str] | None = None) -> None:
        self.answer(status, json.dumps(value).encode(), {**_JSON, **(headers or {})})

    def begin(self, status: HTTPStatus, headers: Mapping[str, str], length: int) -> None:
        """The answer's head; ``length`` bytes must follow, which are not sent when the request was HEAD. Raises Torn."""
        self._keeps_alive = self._keeps_alive and self._can_skip()
        self._is_begun = True
        self.status = status.value
        self._line.send(memoryview(response_head(status, headers, length, keeps_alive=self._keeps_alive)))

    def send(self, view: memoryview) -> None:
        """Raises Torn."""
        if self.request.method != "HEAD":
            self._line.send(view)
            self.sent += len(view)

    def refuse(self, refusal: Refusal) -> None:
        """Answers with the words of the refusal, or resets a connection on which the answer has begun. Raises Torn."""
        if self._is_begun:
            _LOG.warning("an answer of the door to %s at %s is broken off: %s", self.source, self.route, refusal.why)
            self.reset()
        self.answer_json(refusal.status, {"error": refusal.why}, refusal.headers)

    def reset(self) -> None:
        """Raises Torn: what was sent of this answer must not be taken for a whole one."""
        self._line.reset()
        raise Torn

    def finish(self) -> bool:
        """Whether the connection can serve another request."""
        if self._keeps_alive and self._owed:
            rest = bytearray(self._owed)
            self._line.receive_into(memoryview(rest))
            self._owed = 0
        return self._keeps_alive

    def _can_skip(self) -> bool:
        """An unread body of a client that waits for 100 (Continue) may come or not: nobody can go on from there."""
        return not self._owed or (self._owed <= _SMALL and not self.request.expects_continue)


class _Line:
    """One connection's bytes, with patience for them."""

    def __init__(self, connection: socket.socket, limits: Limits, clock: Callable[[], float]) -> None:
        self.source = str(connection.getpeername()[0])
        self._socket = connection
        self._limits = limits
        self._clock = clock
        self._ahead = bytearray()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def head(self, idle_s: float) -> bytes | None:
        """The next request's head; None when the other end has nothing more to ask. Raises Refusal, OSError."""
        until = None
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            if len(self._ahead) > LONGEST_HEAD:
                raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head of more than {LONGEST_HEAD} bytes")
            if self._ahead and until is None:
                until = self._clock() + self._limits.head_s
            try:
                self._socket.settimeout(idle_s if until is None else max(0.001, until - self._clock()))
                told = self._socket.recv(_SMALL)
            except TimeoutError as error:
                if until is None:
                    return None
                raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "the rest of the request's head did not come") from error
            if not told:
                return None
            self._ahead += told
        if end > LONGEST_HEAD:
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head of more than {LONGEST_HEAD} bytes")
        head = bytes(self._ahead[:end])
        del self._ahead[: end + 4]
        return head

    def receive_into(self, view: memoryview, seen: Callable[[memoryview], object] = lambda _: None) -> None:
        done = min(len(self._ahead), len(view))
        if done:
            view[:done] = self._ahead[:done]
            del self._ahead[:done]
            seen(view[:done])

        def receive_and_show(at: int) -> int:
            moved = self._socket.recv_into(view[at : at + _CACHED])
            seen(view[at : at + moved])
            return moved

        self._move(done, len(view), receive_and_show)

    def send(self, view: memoryview) -> None:
        self._move(0, len(view), lambda at: self._socket.send(view[at : at + _CHUNK]))

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.close()

    def linger(self) -> None:
        """Reads on a little before the end, else the reset that answers unread bytes overtakes the answer."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            until = self._clock() + self._limits.linger_s
            while (left := until - self._clock()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(_SMALL):
                    return

    def _move(self, done: int, size: int, step: Callable[[int], int]) -> None:
        """Moves bytes until all are, as long as enough go in each stretch of time."""
        window_at, window_from = self._clock(), done
        try:
            self._socket.settimeout(self._limits.stall_s)
            while done < size:
                moved = step(done)
                if not moved:
                    raise Torn
                done += moved
                now = self._clock()
                if now - window_at > self._limits.stall_s:
                    if done < size and done - window_from < self._limits.least_rate * self._limits.stall_s:
                        raise Torn
                    window_at, window_from = now, done
        except OSError as error:
            raise Torn from error


class Server:
    """Listens from ``start`` until ``stop``. ``serve`` answers one exchange; it may raise Refusal and Torn. ``seen`` is told of each that has ended."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        serve: Callable[[Exchange], None],
        seen: Callable[[Exchange], None],
        clock: Callable[[], float],
        limits: Limits | None = None,
    ) -> None:
        self._address = address
        self._port = port
        self._serve = serve
        self._seen = seen
        self._clock = clock
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._open: dict[socket.socket, tuple[threading.Thread, str]] = {}
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Where it listens, also when it was asked for any port."""
        return self._port

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._open)

    def start(self) -> None:
        """Raises OSError: somebody else has the port."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        self._listener = socket.create_server((self._address, self._port), family=family, backlog=256)
        self._port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), name="door", daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """Ends every connection, also in the middle of a body."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        if self._accepting is not None:
            self._accepting.join()
        with self._lock:
            left = list(self._open.items())
        for connection, _ in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for _, (thread, _place) in left:
            if thread is not threading.current_thread():
                thread.join(timeout=5)

    def _accept(self, listener: socket.socket) -> None:
        pause = threading.Event()
        while self._listener is listener:
            try:
                connection, peer = listener.accept()
            except OSError:
                if self._listener is not listener:
                    return
                pause.wait(0.02)  # no descriptor left: those that are open end in their time
                continue
            self._admit(connection, str(peer[0]))

    def _admit(self, connection: socket.socket, source: str) -> None:
        place = _OWN if self._is_own(source) else source
        with self._lock:
            over = self._over(place)
            thread = threading.Thread(target=self._converse, args=(connection, over >= 0), name="door-connection", daemon=True)
            if over < self._limits.most_refused:
                self._open[connection] = thread, place
        try:
            if over < self._limits.most_refused:
                thread.start()
                return
        except RuntimeError:  # no thread left on this machine: the door must outlive that
            _LOG.warning("a connection from %s is closed: no thread can be started for it", source)
            with self._lock:
                del self._open[connection]
        connection.close()

    def _over(self, place: str) -> int:
        """How far one more connection from there is beyond what is served, below 0 if it is not."""
        places = [one for _, one in self._open.values()]
        if place == _OWN:
            return places.count(_OWN) - self._limits.most_own
        others = len(places) - places.count(_OWN) - self._limits.most_others
        return max(others, places.count(place) - self._limits.most_of_a_stranger)

    def _is_own(self, source: str) -> bool:
        return source == self._address or ipaddress.ip_address(source.partition("%")[0]).is_loopback

    def _converse(self, connection: socket.socket, is_too_many: bool) -> None:
        try:
            line = _Line(connection, self._limits, self._clock)
            self._exchanges(line, is_too_many)
        except (OSError, Torn):
            pass
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def _exchanges(self, line: _Line, is_too_many: bool) -> None:
        idle_s = self._limits.idle_s if self._is_own(line.source) else self._limits.idle_elsewhere_s
        try:
            while head := line.head(self._limits.linger_s if is_too_many else idle_s):
                exchange = Exchange(line, parse(head))
                if is_too_many:
                    why = "as many connections are open, in all or from your address, as this door serves"
                    raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, why, {"Retry-After": "1"})  # noqa: TRY301
                if not self._one(exchange):
                    break
        except Refusal as refusal:
            line.send(memoryview(_last_words(refusal)))
        line.linger()

    def _one(self, exchange: Exchange) -> bool:
        try:
            try:
                self._serve(exchange)
            except Refusal as refusal:
                exchange.refuse(refusal)
            except Torn:
                raise
            except Exception:  # noqa: BLE001  (whatever it is, it must cost this request alone)
                _LOG.exception("the door failed at %s", exchange.route)
                exchange.refuse(Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "the memory tier failed; its log says how"))
            return exchange.finish()
        finally:
            self._seen(exchange)


def _last_words(refusal: Refusal) -> bytes:
    body = json.dumps({"error": refusal.why}).encode()
    return response_head(refusal.status, {**_JSON, **refusal.headers}, len(body), keeps_alive=False) + body
