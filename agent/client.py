"""The agent's calls to the control plane. Says what an answer means; when to call again is the loop's business."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

import httpx

from agent.network import Network
from agent.outbox import Numbered
from everstep.examination import Check
from everstep.notices import Evacuation
from everstep.protocol import Beat, Directive, Fault, Registration, Welcome
from everstep.standby import Standby
from everstep.tiers import TierPlan

log = logging.getLogger(__name__)

Line = Directive | Fault | Check | TierPlan | Evacuation | Standby
"""Of the directive stream."""

_PATIENCE = httpx.Timeout(10.0, connect=3.0)
_STREAM_PATIENCE = httpx.Timeout(10.0, connect=3.0, read=6.0)
"""Three of the stream's keep-alives: a control plane that vanished without closing the connection is noticed by then."""


class Unreachable(Exception):
    """Nobody answers, or the answer is that it cannot be given now. Nothing follows from it but patience."""


class NotKnown(Exception):
    """The control plane does not take this token: register again."""


class NodeGone(Exception):
    """The node has been released: its agent and its processes are to end."""


class Rejected(Exception):
    """The control plane will never take this; ``index`` is the report's place in its batch, where known."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class ControlPlane:
    """One connection pool to the agents' door. ``token`` is the node token, once there is one; nothing gets through a cut ``network``."""

    def __init__(self, api_url: str, network: Network | None = None) -> None:
        self._network = network or Network()
        # Loading the certificate store takes 20 ms, which a plain address need not pay on every restart.
        verify = ssl.create_default_context() if api_url.startswith("https:") else False
        self._http = httpx.AsyncClient(base_url=f"{api_url}/agent/v1", timeout=_PATIENCE, verify=verify, trust_env=False)
        self.token: str | None = None

    async def close(self) -> None:
        await self._http.aclose()

    async def register(self, registration: Registration) -> Welcome:
        return Welcome.from_wire(await self._post("/register", registration.to_wire()))

    async def beat(self, beat: Beat) -> float:
        """Returns the seconds until the next beat is wanted."""
        return float((await self._post("/beat", beat.to_wire()))["next_s"])

    async def report(self, boot: str, batch: Sequence[Numbered]) -> None:
        """Returns when the reports are stored."""
        told = [{"sequence": item.sequence, "report": item.report.to_wire()} for item in batch]
        await self._post("/reports", {"boot": boot, "reports": told})

    async def directives(self) -> AsyncIterator[Line | None]:
        """What is told, as it comes; None is an empty line. Raises Unreachable when the stream ends."""
        self._check_network()
        try:
            async with self._http.stream("GET", "/directives", headers=self._headers(), timeout=_STREAM_PATIENCE) as answer:
                if answer.status_code != HTTPStatus.OK:
                    await answer.aread()
                    _raise_for(answer)
                async for line in self._network.lines(answer.aiter_lines()):
                    try:
                        directive = _line(json.loads(line)) if line.strip() else None
                    except (ValueError, TypeError, AttributeError):
                        # Of a newer control plane, perhaps: what it tells of other jobs must still be obeyed.
                        # Not its text: that holds the job's variables and its rendezvous token.
                        log.exception("a directive of %d characters cannot be read and is left out", len(line))
                        continue
                    yield directive
        except httpx.HTTPError as error:
            raise Unreachable(_words(error)) from error
        message = "the control plane closed the directive stream"
        raise Unreachable(message)

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._check_network()
        # Log lines and tracebacks may hold halves of characters, which UTF-8 cannot carry.
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        try:
            answer = await self._http.post(path, content=content, headers=self._headers())
        except httpx.HTTPError as error:
            raise Unreachable(_words(error)) from error
        if answer.status_code != HTTPStatus.OK:
            _raise_for(answer)
        return dict(answer.json())

    def _check_network(self) -> None:
        if self._network.is_cut:
            message = "the agent is cut off from the control plane, on purpose"
            raise Unreachable(message)

    def _headers(self) -> dict[str, str]:
        return {"content-type": "application/json"} | ({"authorization": f"Bearer {self.token}"} if self.token else {})


def _line(wire: dict[str, Any]) -> Line:
    if "memory_tier" in wire:
        return TierPlan.from_wire(wire["memory_tier"])
    if "evacuate" in wire:
        return Evacuation.from_wire(wire["evacuate"])
    if "standby" in wire:
        return Standby.from_wire(wire["standby"])
    if "check" in wire:
        return Check.from_wire(wire["check"])
    return Fault.from_wire(wire["fault"]) if "fault" in wire else Directive.from_wire(wire)


def _raise_for(answer: httpx.Response) -> None:
    problem = _problem(answer)
    detail = f"{answer.status_code} {problem.get('detail', answer.reason_phrase)}"
    match answer.status_code:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.CONFLICT:
            raise NotKnown(detail)
        case HTTPStatus.GONE:
            raise NodeGone(detail)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            index = problem.get("index")
            raise Rejected(detail, index if isinstance(index, int) else None)
        case _:
            raise Unreachable(detail)


def _problem(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
