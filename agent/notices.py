"""Notices that this node is about to go: watched for at the provider, told to the control plane, and to what trains here.

The provider's word counts at once, whether or not the control plane can be reached; the control plane's comes on top of it. Of several that
stand, the one with the earliest deadline is what the node's processes hear. All of it is level-triggered: each of them may be told again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from everstep.notices import Evacuation, NoticeKind, SpotNotice
from everstep.protocol import Report

log = logging.getLogger(__name__)

IMDS_VARIABLE = "EVERSTEP_IMDS_URL"
_EVERY_S = 1.0
"""At most so long between two looks: the provider itself asks for five seconds at most, and two minutes are soon over."""
_PATIENCE_S = 2.0
_TOKEN_TTL_S = 21_600
_OLDEST_TOKEN_S = _TOKEN_TTL_S / 2
_INTERRUPTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Notices:
    """``tell`` hands an evacuation to every training process of the node, those that start later included. Neither it nor ``report`` blocks.

    ``environment`` says under ``EVERSTEP_IMDS_URL`` where the instance's metadata is; without it the provider is not asked.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        environment: Mapping[str, str],
        tell: Callable[[Evacuation], None],
        report: Callable[[Report], None],
    ) -> None:
        self._path = state_dir / "notices.json"
        self._url = environment.get(IMDS_VARIABLE, "").rstrip("/")
        self._tell = tell
        self._report = report
        self._standing: dict[str, SpotNotice] = {}
        """By source and kind."""
        self._ordered: Evacuation | None = None
        self._told: Evacuation | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Tells again what stood when the agent ended, and begins to watch. Returns at once."""
        self._standing = _read(self._path)
        for notice in self._standing.values():
            self._report(notice)
        self._hand_on()
        if self._url:
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Ends the watch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def announce(self, notice: SpotNotice) -> None:
        """What somebody says of the node: told once for each change. One that was made on purpose goes the way of a real one."""
        key = f"{notice.source}:{notice.notice}"
        present = self._standing.get(key)
        if notice.is_over:
            if self._standing.pop(key, None) is None:
                return
        elif present is not None and present.deadline == notice.deadline:
            return
        else:
            self._standing[key] = notice
        log.warning("%s notice%s", notice.notice, " is over" if notice.is_over else f", deadline {notice.deadline}")
        self._hand_on()
        self._report(notice)
        self._keep()

    def hear(self, told: Evacuation) -> None:
        """The control plane's word: its newest counts."""
        self._ordered = told
        self._hand_on()

    def _keep(self) -> None:
        """A disk that is full keeps nobody from hearing: the next start of the agent asks the provider anew."""
        try:
            _write(self._path, self._standing)
        except OSError as error:
            log.warning("what the provider has said cannot be kept: %s", error)

    # ------------------------------------------------------------ what the processes hear

    def _hand_on(self) -> None:
        """The strictest of what stands, if it is another one than before."""
        standing = [_evacuation(notice) for notice in self._standing.values()]
        if self._ordered is not None and not self._ordered.is_over:
            standing.insert(0, self._ordered)
        strictest = min(standing, key=lambda one: float("inf") if one.deadline is None else one.deadline, default=None)
        if strictest is None:
            ended = self._told or self._ordered  # also one that the agent before this one has handed on
            strictest = None if ended is None else Evacuation(ended.id, ended.why, is_over=True)
        if strictest is not None and strictest != self._told:
            self._told = strictest
            self._tell(strictest)

    # ------------------------------------------------------------ the provider

    async def _watch(self) -> None:
        jitter = random.Random()  # noqa: S311  (jitter)
        is_away = False
        async with httpx.AsyncClient(base_url=self._url, timeout=_PATIENCE_S, trust_env=False) as http:
            metadata = _Metadata(http)
            while True:
                try:
                    self._note(NoticeKind.INTERRUPTION, _deadline(await metadata.read(_INTERRUPTION)))
                    self._note(NoticeKind.REBALANCE, await metadata.read(_REBALANCE) and {"deadline": None})
                    is_away = False
                except (httpx.HTTPError, ValueError, TypeError) as error:
                    if not is_away:
                        log.warning("the instance's metadata cannot be read, trying on: %s: %s", type(error).__name__, error)
                    is_away = True
                except Exception:
                    log.exception("the instance's metadata could not be followed, trying on")
                await asyncio.sleep(_EVERY_S * jitter.uniform(0.6, 1.0))

    def _note(self, kind: NoticeKind, seen: dict[str, Any] | None) -> None:
        """``seen`` is None where there is no such notice."""
        deadline = seen["deadline"] if seen else None
        self.announce(SpotNotice(kind, time.time(), deadline, is_over=not seen))


class _Metadata:
    """The instance metadata service, version 2."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._token = ""
        self._token_at = 0.0

    async def read(self, path: str) -> dict[str, Any] | None:
        """The document, None if there is none. Raises HTTPError, ValueError."""
        answer = await self._get(path)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._token = ""
            answer = await self._get(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        found = answer.json()
        if not isinstance(found, dict):
            message = f"{path} holds no object"
            raise TypeError(message)
        return found

    async def _get(self, path: str) -> httpx.Response:
        if not self._token or time.monotonic() - self._token_at > _OLDEST_TOKEN_S:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
            answer = await self._http.put("/latest/api/token", headers=lifetime)
            answer.raise_for_status()
            self._token, self._token_at = answer.text, time.monotonic()
        return await self._http.get(path, headers={"X-aws-ec2-metadata-token": self._token})


def _deadline(document: dict[str, Any] | None) -> dict[str, Any] | None:
    """When the instance is taken, in Unix seconds; a hibernation begins without a time. Raises ValueError."""
    if document is None:
        return None
    at = document.get("time")
    return {"deadline": datetime.fromisoformat(str(at)).timestamp() if at else None}


def _evacuation(notice: SpotNotice) -> Evacuation:
    why = "its provider takes the instance back" if notice.notice is NoticeKind.INTERRUPTION else "its provider may take it soon"
    return Evacuation(0, why, notice.deadline)


def _read(path: Path) -> dict[str, SpotNotice]:
    """Empty if nothing stood, or it cannot be read: the provider says again what it has said."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {key: SpotNotice.from_wire(wire) for key, wire in json.loads(path.read_text()).items()}
    return {}


def _write(path: Path, standing: Mapping[str, SpotNotice]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({key: notice.to_wire() for key, notice in standing.items()}))
    draft.replace(path)
