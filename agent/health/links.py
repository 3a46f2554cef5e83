"""InstanceConnectivity: bandwidth and latency to each peer, over TCP and through the addresses that training uses.

Every agent listens for its peers on a port of its own. A peer first sends small messages, each of which comes back, then bytes, whose number
comes back; or it asks this node to sum up with it (``reduce``), which one that has work to do declines. Whoever connects can only make this node
count, or, while it is idle, sum up for a bounded time with whoever asks, one at a time: nothing that is received is kept.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from agent.health import findings
from agent.health.limits import Limits
from everstep.examination import Finding, Peer

KIND = "InstanceConnectivity"
_MIB = 1024 * 1024
_PING = b"p" * 8
_END = b"e" * 8
_INVITE = b"r" * 8
_YES, _NO = b"y", b"n"
_ROUNDS = 20
_MOST_BYTES = 256 * _MIB
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Link:
    """What was measured to one peer; ``error`` if nothing could be."""

    peer: Peer
    round_trip_ms: float = 0.0
    mib_per_s: float = 0.0
    error: str | None = None


class Door:
    """Answers peers that measure. ``join`` is asked whether this node sums up with the one that listens there, and begins to if it does."""

    def __init__(self, address: str, join: Callable[[str, int], bool] = lambda _address, _port: False) -> None:
        self._address = address
        self._join = join
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Returns the port."""
        self._server = await asyncio.start_server(self._serve, self._address, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_PATIENCE_S):
                while (word := await reader.readexactly(len(_PING))) == _PING:
                    writer.write(word)
                    await writer.drain()
                if word == _INVITE:
                    (port,) = struct.unpack("!H", await reader.readexactly(2))
                    writer.write(_YES if self._join(writer.get_extra_info("peername")[0], port) else _NO)
                else:
                    writer.write(struct.pack("!Q", await _count(reader)))
                await writer.drain()
        writer.close()


async def _count(reader: asyncio.StreamReader) -> int:
    (promised,) = struct.unpack("!Q", await reader.readexactly(8))
    counted = 0
    while counted < min(promised, _MOST_BYTES) and (chunk := await reader.read(_MIB)):
        counted += len(chunk)
    return counted


async def invite(peer: Peer, address: str, port: int) -> bool:
    """Asks a peer to sum up with this node, which listens at ``port`` of ``address``. Whoever cannot be asked declines."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(peer.address, peer.port, local_addr=(address, 0))
            try:
                writer.write(_INVITE + struct.pack("!H", port))
                return await reader.readexactly(1) == _YES
            finally:
                writer.close()
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        return False


async def measure(peer: Peer, limits: Limits) -> Link:
    """Never raises: a peer that cannot be reached is what is found."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await _measure(peer, int(limits.link_mib * _MIB))
    except TimeoutError:
        return Link(peer, error=f"no answer within {_PATIENCE_S:g} s")
    except (OSError, asyncio.IncompleteReadError, struct.error) as error:
        return Link(peer, error=str(error) or type(error).__name__)


async def _measure(peer: Peer, size: int) -> Link:
    reader, writer = await asyncio.open_connection(peer.address, peer.port)
    try:
        trips = []
        for _ in range(_ROUNDS):
            began = time.monotonic()
            writer.write(_PING)
            await reader.readexactly(len(_PING))
            trips.append(time.monotonic() - began)
        began = time.monotonic()
        writer.write(_END + struct.pack("!Q", size))
        block = bytes(_MIB)
        for offset in range(0, size, _MIB):
            writer.write(block[: size - offset])
            await writer.drain()
        (counted,) = struct.unpack("!Q", await reader.readexactly(8))
    finally:
        writer.close()
    if counted != size:
        return Link(peer, error=f"{counted} of {size} bytes arrived")
    return Link(peer, statistics.median(trips) * 1000, size / _MIB / max(time.monotonic() - began, 1e-9))


def judge(links: Sequence[Link], limits: Limits) -> list[Finding]:
    """A node is bad when most of its links are: one bad link tells as much against the peer as against the node."""
    if not links:
        return [findings.skipped(KIND, "the group has no other node in service")]
    bad = [found for link in links if (found := _judge(link, limits)) is not None]
    if 2 * len(bad) > len(links):
        return bad
    good = [link for link in links if link.error is None]
    slowest = min(good, key=lambda link: link.mib_per_s)
    farthest = max(good, key=lambda link: link.round_trip_ms)
    noted = f"; {len(bad)} of {len(links)} links are bad, which are the peers' to answer for" if bad else ""
    says = f"{len(links)} peers, {slowest.mib_per_s:.4g} MiB/s and {farthest.round_trip_ms:.3g} ms at worst{noted}"
    return [findings.passed(KIND, says)]


def _judge(link: Link, limits: Limits) -> Finding | None:
    if link.error is not None:
        return findings.failed(KIND, f"{link.peer.address} cannot be reached: {link.error}")
    if link.mib_per_s < limits.link_mib_per_s:
        what = f"bandwidth to {link.peer.address}"
        return findings.at_least(KIND, what, link.mib_per_s, limits.link_mib_per_s, "MiB/s")
    if link.round_trip_ms > limits.link_ms:
        return findings.at_most(KIND, f"round trip to {link.peer.address}", link.round_trip_ms, limits.link_ms, "ms")
    return None
