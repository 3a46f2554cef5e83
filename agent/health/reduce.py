"""InstanceConnectivity: an all-reduce with another node of the group, as training does it, in a child of each of the two agents.

The node that is examined asks one peer after the other; a peer joins unless it has work to do, or sums up with somebody already, or asks
somebody itself. What must be
reached at least is known by then from what the others of the group have measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agent.health import findings, links
from agent.health.limits import Limits
from everstep.examination import Check, Finding, Peer

_NO_TORCH = "No module named 'torch'"
_TOURS = 4
_MOST_FAILURES = 2
Child = Callable[[list[str], float], Awaitable[tuple[int, str]]]


@dataclass(frozen=True)
class Sum:
    """What came of one all-reduce; ``error`` if nothing could be measured."""

    peer: Peer
    mib_per_s: float = 0.0
    ms: float = 0.0
    error: str | None = None


class Reducer:
    """``child`` runs a command within a limit and returns its exit code and output; ``is_busy``: whether this node has work to do."""

    def __init__(self, address: str, limits: Limits, *, child: Child, is_busy: Callable[[], bool]) -> None:
        self._address = address
        self._limits = limits
        self._child = child
        self._is_busy = is_busy
        self._joined: asyncio.Task[tuple[int, str]] | None = None
        self._is_asking = False
        self._jitter = random.Random()  # noqa: S311  (jitter)

    def join(self, address: str, port: int) -> bool:
        """Whether this node sums up with the one that listens there; it has begun to, then."""
        if self._is_busy() or self._is_asking or (self._joined is not None and not self._joined.done()):
            return False
        self._joined = asyncio.get_running_loop().create_task(self._run(1, f"{address}:{port}"))
        return True

    async def stop(self) -> None:
        if self._joined is not None:
            self._joined.cancel()
            await asyncio.gather(self._joined, return_exceptions=True)

    async def examine(self, check: Check) -> list[Finding]:
        """With a second peer if the first attempt comes to nothing: it may have been the first peer's fault."""
        failures: list[Sum] = []
        peers = sorted(check.peers, key=lambda peer: (peer.address <= self._address, peer.address))  # not all with the same one
        for tour in range(_TOURS):
            for peer in peers:
                done = await self._with(peer)
                if done is None:
                    continue
                if done.error is None or _NO_TORCH in done.error:
                    return judge(done, failures, _limits(self._limits, check))
                failures.append(done)
                if len(failures) == min(_MOST_FAILURES, len(peers)):
                    return [findings.failed(links.KIND, f"no all-reduce with {one.peer.address}: {one.error}") for one in failures]
            if tour < _TOURS - 1:
                # They may be done with each other by then; two that ask each other must not do so in step.
                await asyncio.sleep(self._limits.reduce_pause_s * self._jitter.uniform(0.5, 1.5))
        return [findings.skipped(links.KIND, "no other node of the group was free for an all-reduce")]

    async def _with(self, peer: Peer) -> Sum | None:
        """None if the peer declines. What this node has joined comes to its end first: two sums at once would measure each other."""
        while self._joined is not None and not self._joined.done():
            await asyncio.wait({self._joined})
        self._is_asking = True
        try:
            return await self._asked(peer)
        finally:
            self._is_asking = False

    async def _asked(self, peer: Peer) -> Sum | None:
        port = _free_port(self._address)
        if not await links.invite(peer, self._address, port):
            return None
        code, output = await self._run(0, f"{self._address}:{port}")
        said = output.strip().splitlines()[-1] if output.strip() else "it said nothing"
        if code != 0:
            return Sum(peer, error=said)
        told = json.loads(said)
        return Sum(peer, told["mib_per_s"], told["ms"])

    async def _run(self, rank: int, meet: str) -> tuple[int, str]:
        limit_s = self._limits.reduce_s
        command = [sys.executable, "-P", "-m", "everstep.validation", "--rank", str(rank), "--size", "2", "--meet", meet]
        command += ["--address", self._address, "--seconds", f"{limit_s:g}", "--reduce", f"{self._limits.reduce_mib:g}"]
        return await self._child(command, limit_s)


def judge(done: Sum, failures: Sequence[Sum], limits: Limits) -> list[Finding]:
    """Bandwidth and latency against what must be reached."""
    if done.error is not None:
        return [findings.skipped(links.KIND, "there is no torch on this node for an all-reduce")]
    noted = "".join(f" (after none with {one.peer.address}: {one.error})" for one in failures)
    what = f"all-reduce with {done.peer.address}{noted}"
    rate = findings.at_least(links.KIND, f"bandwidth of an {what}", done.mib_per_s, limits.reduce_mib_per_s, "MiB/s")
    trip = findings.at_most(links.KIND, f"latency of an {what}", done.ms, limits.reduce_ms, "ms")
    return [replace(rate, name="all_reduce_mib_per_s"), replace(trip, name="all_reduce_ms")]


def _limits(own: Limits, check: Check) -> Limits:
    """The stricter of what was set for this node and what its group has shown to be possible."""
    if check.floor is None:
        return own
    return replace(
        own,
        reduce_mib_per_s=max(own.reduce_mib_per_s, check.floor.mib_per_s),
        reduce_ms=min(own.reduce_ms, check.floor.ms),
    )


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
