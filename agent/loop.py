"""The agent: registers, beats, obeys its directive stream and tells what happens, all at once and for ever.

Losing the control plane ends none of the node's work: reports wait in order, and everything goes on when it is back. Only its word that the
node is gone ends the agent and what it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agent.assignments import Assignments
from agent.client import ControlPlane, NodeGone, NotKnown, Rejected, Unreachable
from agent.faults import Faults
from agent.health.examiner import Examiner
from agent.identity import Identity
from agent.lifecycle import Course, Lifecycle
from agent.logs import Logs
from agent.monitor import Monitor
from agent.notices import Notices
from agent.outbox import Outbox
from agent.pauses import Pauses
from agent.settings import Settings
from agent.tier import Tier
from everstep.examination import Check
from everstep.notices import Evacuation
from everstep.protocol import (
    Assignment,
    Beat,
    Directive,
    Fault,
    LifecycleReport,
    ProcessReport,
    ProcessStatus,
    Registration,
    Welcome,
)
from everstep.standby import Standby
from everstep.tiers import TierPlan

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""How long the last reports may take when the agent is asked to end."""
GONE_GRACE_S = 2.0
"""How long processes have when the node has been released under them: their place may be taken already."""


class Runs(Protocol):
    """What the loop asks of the supervisor."""

    async def start(self) -> int: ...

    def inventory(self) -> tuple[ProcessReport, ...]: ...

    async def apply(self, assignment: Assignment) -> None: ...

    def stand_by(self, told: Standby) -> None: ...

    async def stop(self, grace_s: float) -> None: ...

    async def detach(self) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What the loop works with; put together by ``__main__``."""

    settings: Settings
    version: str
    identity: Identity
    supervisor: Runs
    control: ControlPlane
    outbox: Outbox
    pauses: Pauses
    lifecycle: Lifecycle
    logs: Logs
    faults: Faults
    examiner: Examiner
    tier: Tier
    monitor: Monitor
    notices: Notices


class Agent:
    """One start of the agent. ``run`` ends when asked to, or when the node is gone."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._asked = asyncio.Event()
        self._lifecycle_begun = False
        self._beats = 0
        self._health_port = 0
        self._background: set[asyncio.Future[None]] = set()
        self._assignments = Assignments(parts.supervisor.apply, self._spawn)

    def ask_to_end(self) -> None:
        self._asked.set()

    async def run(self) -> bool:
        """Returns whether the node is gone, in which case nothing must start this agent again."""
        await self._parts.tier.start()
        port = await self._parts.supervisor.start()
        self._health_port = await self._parts.examiner.start()
        await self._parts.monitor.start()
        await self._parts.notices.start()
        self._parts.faults.resume()
        work = asyncio.create_task(self._serve_for_ever(port))
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
        await _dropped(work, asked, *self._background)
        await self._parts.examiner.stop()
        await self._parts.notices.stop()
        await self._parts.monitor.stop()
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, NodeGone):
            await self._parts.supervisor.detach()  # our fault, not that of the node's work, which the next start adopts
            await self._parts.tier.detach()
            raise error
        await self._parts.supervisor.stop(GONE_GRACE_S if error else self._parts.settings.grace_s)
        await self._parts.tier.stop(is_node_gone=error is not None)
        await self._flush()
        await self._parts.control.close()
        return error is not None

    async def _flush(self) -> None:
        """The last reports: how the node's processes ended."""
        with contextlib.suppress(TimeoutError, Unreachable, NotKnown, NodeGone, Rejected):
            async with asyncio.timeout(FLUSH_S):
                while batch := self._parts.outbox.batch():
                    await self._parts.control.report(self._parts.identity.boot, batch)
                    self._parts.outbox.confirm()

    # ------------------------------------------------------------ registering

    async def _serve_for_ever(self, port: int) -> None:
        """Raises NodeGone."""
        refusals = 0
        while True:
            try:
                welcome = await self._register(port, refusals)
                refusals = 0
                await self._serve(welcome)
            except NotKnown as error:
                refusals += 1
                log.warning("the control plane does not know this agent (%s); registering again", error)
                await self._parts.pauses.after(refusals)

    async def _register(self, port: int, refusals: int) -> Welcome:
        """Tries until the control plane answers. Raises NotKnown, NodeGone."""
        tries = 0
        while True:
            try:
                welcome = await self._parts.control.register(self._registration(port, refusals))
            except (Unreachable, Rejected) as error:
                tries += 1
                if tries == 1:
                    log.warning("cannot register, trying on: %s", error)
                await self._parts.pauses.after(tries)
                continue
            self._parts.control.token = welcome.node_token
            replace(self._parts.identity, node_token=welcome.node_token).store(self._parts.settings.state_dir)
            log.info("registered as %s, boot %s", self._parts.settings.instance_id, self._parts.identity.boot)
            return welcome

    def _registration(self, port: int, refusals: int) -> Registration:
        """After a refusal the other token is tried: the control plane may have forgotten that this node ever registered."""
        settings = self._parts.settings
        kept = self._parts.control.token or self._parts.identity.node_token
        return Registration(
            instance_id=settings.instance_id,
            token=settings.boot_token if kept is None or refusals % 2 else kept,
            address=settings.address,
            rendezvous_port=port,
            boot=self._parts.identity.boot,
            version=self._parts.version,
            vcpus=settings.vcpus,
            memory_mib=settings.memory_mib,
            processes=self._parts.supervisor.inventory(),
            start=settings.start,
            health_port=self._health_port,
        )

    # ------------------------------------------------------------ serving

    async def _serve(self, welcome: Welcome) -> None:
        """Beats, listens and reports until the token is refused. Raises NotKnown, NodeGone."""
        if not self._lifecycle_begun:
            self._lifecycle_begun = True
            self._spawn(self._live(welcome))
            self._spawn(self._parts.logs.run())
        duties = [asyncio.create_task(duty) for duty in (self._beat(welcome.beat_interval_s), self._listen(), self._tell())]
        try:
            await asyncio.wait(duties, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # No TaskGroup: with that of Python 3.11.2 the agent was seen to end here instead of registering again.
            ended = await _dropped(*duties)
        errors = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
        raise next((error for kind in (NodeGone, NotKnown) for error in errors if isinstance(error, kind)), errors[0])

    async def _live(self, welcome: Welcome) -> None:
        report = LifecycleReport(exit_code=0, seconds=0.0)
        names = tuple(name for name in (welcome.lifecycle_script, welcome.lifecycle_after) if name)
        if welcome.lifecycle_uri and names:
            limit_s = welcome.lifecycle_limit_s or self._parts.settings.lifecycle_limit_s
            course = Course(welcome.lifecycle_uri, names, welcome.lifecycle_tries, welcome.lifecycle_pause_s, limit_s)
            report = await self._parts.lifecycle.run(course, self._parts.outbox.put)
        self._parts.outbox.put(report)

    async def _beat(self, interval_s: float) -> None:
        tries = 0
        while True:
            self._beats += 1
            try:
                interval_s = await self._parts.control.beat(Beat(self._parts.identity.boot, self._beats))
            except (Unreachable, Rejected):
                tries += 1
                await self._parts.pauses.after(tries)
                continue
            tries = 0
            self._parts.pauses.heard()
            await asyncio.sleep(self._parts.pauses.jitter(interval_s))

    async def _listen(self) -> None:
        tries = 0
        while True:
            try:
                listed: set[str] | None = set()
                async for directive in self._parts.control.directives():
                    tries = 0
                    self._parts.pauses.heard()
                    if isinstance(directive, Directive):
                        self._assignments.offer(directive)
                        if listed is not None:
                            listed.add(directive.assignment.job)
                    elif directive is not None:
                        self._hear(directive)
                    elif listed is not None:
                        self._assignments.end_unlisted(self._running_jobs(), listed)
                        listed = None
            except Unreachable as error:
                tries += 1
                if tries == 1:
                    log.info("directive stream ended: %s", error)
                await self._parts.pauses.after(tries)

    def _hear(self, told: Fault | Check | TierPlan | Evacuation | Standby) -> None:
        match told:
            case Fault():
                self._spawn(self._parts.faults.hear(told))
            case Check():
                self._spawn(self._parts.examiner.hear(told))
            case TierPlan():
                self._parts.tier.take(told)
            case Evacuation():
                self._parts.notices.hear(told)
            case Standby():
                self._parts.supervisor.stand_by(told)

    def _running_jobs(self) -> set[str]:
        return {process.job for process in self._parts.supervisor.inventory() if process.status is not ProcessStatus.EXITED}

    async def _tell(self) -> None:
        tries = 0
        outbox = self._parts.outbox
        while True:
            await outbox.wait()
            while batch := outbox.batch():
                try:
                    await self._parts.control.report(self._parts.identity.boot, batch)
                except Rejected as error:
                    self._give_up(error)
                except Unreachable as error:
                    tries += 1
                    if tries == 1:
                        log.warning("%d reports wait: %s", len(outbox), error)
                    await self._parts.pauses.after(tries)
                else:
                    tries = 0
                    outbox.confirm()
                    self._parts.pauses.heard()

    def _give_up(self, error: Rejected) -> None:
        """The control plane will never take one report of the batch. Which, it says, or is found by sending them singly."""
        outbox = self._parts.outbox
        if error.index is None and outbox.split():
            return
        report = outbox.drop(error.index or 0)
        log.error("a report was refused and is given up: %s: %s", error, report)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a duty of the agent failed", exc_info=task.exception())


async def _dropped(*tasks: asyncio.Future[Any]) -> list[BaseException]:
    """Cancels the tasks and waits for their ends; returns what they have raised."""
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    return [end for end in ended if isinstance(end, BaseException)]
