"""Carries a simulated node to the agents' door: register, beat, listen, tell, as the real agent does, thousands of them in one loop.

Beats and the patience of reconnecting are in real seconds, as the control plane's own patience is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from everstep.protocol import Beat, Welcome
from workers.fleet.http import OK, Answer, Http, Unreachable, lines
from workers.fleet.node import Node

log = logging.getLogger(__name__)

_DOOR = "/agent/v1"
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_SILENT_S = 6.0
"""Three of the stream's keep-alives."""


class NotKnown(Exception):
    """The control plane does not take this token: register again."""


class NodeGone(Exception):
    """The node has been released."""


class Rejected(Exception):
    """It will never be taken; ``index`` is the report's place in its batch, where known."""

    def __init__(self, message: str, index: int | None) -> None:
        super().__init__(message)
        self.index = index


@dataclass(eq=False)
class Connection:
    """One start of a node's agent, until it is stopped or its node is gone."""

    node: Node
    http: Http
    dice: random.Random
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _healed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Ends when the control plane says that the node is gone."""
        self.node.urge = self._news.set
        refusals = 0
        while not self.node.is_over:
            try:
                interval_s = await self._register(refusals)
                refusals = 0
                await self._serve(interval_s)
            except NotKnown:
                refusals += 1
                await self._pause(refusals)
            except NodeGone:
                return

    def heal(self) -> None:
        """The network is back."""
        self._healed.set()

    async def _register(self, refusals: int) -> float:
        tries = 0
        while True:
            try:
                wire = self.node.registration(refusals=refusals).to_wire()
                welcome = Welcome.from_wire(_read(await self._post("/register", wire)))
            except (Unreachable, Rejected, ValueError) as error:
                tries += 1
                if tries == 1:
                    log.info("%s cannot register, trying on: %s", self.node.machine.host.instance_id, error)
                await self._pause(tries)
                continue
            self.node.welcomed(welcome)
            return welcome.beat_interval_s

    async def _serve(self, interval_s: float) -> None:
        """Raises NotKnown, NodeGone."""
        duties = [asyncio.create_task(duty) for duty in (self._beat(interval_s), self._listen(), self._tell())]
        try:
            await asyncio.wait(duties, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for duty in duties:
                duty.cancel()
            ended = await asyncio.gather(*duties, return_exceptions=True)
        errors = [error for error in ended if isinstance(error, Exception)]
        raise next((error for error in errors if isinstance(error, NodeGone)), errors[0])

    async def _beat(self, interval_s: float) -> None:
        """The first beat of each is at a moment of its own, so that a fleet that came up at once does not beat at once."""
        tries = 0
        pause_s = interval_s * self.dice.random()
        while True:
            await asyncio.sleep(pause_s)
            self.node.beats += 1
            try:
                answer = _read(await self._post("/beat", Beat(self.node.boot, self.node.beats).to_wire()))
                interval_s = _next_s(answer)
            except (Unreachable, Rejected):
                tries += 1
                pause_s = _pause_s(tries, self.dice)
                continue
            tries = 0
            pause_s = interval_s * self.dice.uniform(0.9, 1.1)

    async def _listen(self) -> None:
        tries = 0
        while True:
            try:
                await self._reachable()
                async with self.http.stream(f"{_DOOR}/directives", self.node.token) as (status, reader):
                    if status != OK:
                        _refuse(Answer(status, b"{}"))
                    tries = 0
                    self.node.begin()
                    await self._follow(lines(reader))
            except (Unreachable, Rejected):
                pass
            tries += 1
            await self._pause(tries)

    async def _follow(self, told: AsyncIterator[bytes]) -> None:
        """A cut network drops what is on its way without a word: the stream is neither read nor closed until it is back, and then begun anew."""
        while True:
            async with asyncio.timeout(_SILENT_S):
                line = await anext(told, None)
            if self.node.machine.is_cut:
                await self._reachable()
                return
            if line is None:
                return
            try:
                self.node.hear(json.loads(line) if line.strip() else None)
            except (ValueError, TypeError, KeyError, AttributeError):
                # Not its text: that holds the job's variables and its rendezvous token.
                log.exception("a directive of %d bytes cannot be read and is left out", len(line))

    async def _tell(self) -> None:
        tries = 0
        while True:
            await self._news.wait()
            self._news.clear()
            while batch := self.node.batch():
                told = [{"sequence": number, "report": report.to_wire()} for number, report in batch]
                try:
                    _read(await self._post("/reports", {"boot": self.node.boot, "reports": told}))
                except Rejected as error:
                    log.error("a report was refused and is given up: %s: %s", error, self.node.drop(error.index or 0))  # noqa: TRY400
                except Unreachable:
                    tries += 1
                    await self._pause(tries)
                else:
                    tries = 0
                    self.node.confirm()

    async def _post(self, path: str, body: object) -> Answer:
        await self._reachable()
        answer = await self.http.post(f"{_DOOR}{path}", body, self.node.token)
        if self.node.machine.is_cut:
            message = "the network was cut"
            raise Unreachable(message)
        return answer

    async def _reachable(self) -> None:
        while self.node.machine.is_cut:
            self._healed.clear()
            await self._healed.wait()

    async def _pause(self, tries: int) -> None:
        await asyncio.sleep(_pause_s(tries, self.dice))


def _pause_s(tries: int, dice: random.Random) -> float:
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * (1 << min(tries - 1, 6))) * dice.uniform(0.5, 1.0)


def _read(answer: Answer) -> dict[str, Any]:
    if answer.status != OK:
        _refuse(answer)
    try:
        return answer.json()
    except ValueError as error:
        message = f"the control plane {error}"
        raise Unreachable(message) from error


def _next_s(answer: dict[str, Any]) -> float:
    told = answer.get("next_s")
    if not isinstance(told, int | float) or isinstance(told, bool) or not 0 < told < math.inf:
        message = f"the control plane's answer to a beat has {told!r} as next_s, which must be a number of seconds above 0"
        raise Unreachable(message)
    return float(told)


def _refuse(answer: Answer) -> None:
    """The status decides. A body that says nothing, as one of a proxy's may, costs no more than its words."""
    try:
        problem = answer.json()
    except ValueError as error:
        problem = {"detail": str(error)}
    detail = f"{answer.status} {problem.get('detail', '')}"
    match answer.status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.CONFLICT:
            raise NotKnown(detail)
        case HTTPStatus.GONE:
            raise NodeGone(detail)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            index = problem.get("index")
            raise Rejected(detail, index if isinstance(index, int) else None)
        case _:
            raise Unreachable(detail)
