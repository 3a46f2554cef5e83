"""Hosts: the calls to the provider that a node needs, made in no transaction. What follows from the answers is the node's plan's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.cluster.table import Cluster, InstanceGroup
from models.directive.changes import settle_withdrawn
from models.directive.states import DirectiveState
from models.ids import InstanceId, NodeId
from models.job import queries as jobs
from models.move import wake
from models.node.changes import report_host, settle_launched, settle_node, settle_obstacle
from models.node.hosts import settle_placed, settle_postponed
from models.node.states import CapacityType, HostWord, NodeState
from models.node.table import Host, Node
from models.node.wishes import settle_restarted
from models.volume.changes import settle_node_gone
from workers.plans import host as plans
from workers.plans.decision import Decision
from workers.providers.base import HostNotFound, HostRef, HostSeen, HostSpec, NoCapacity, Provider, Refused, Throttled
from workers.reconcilers.host_spec import host_spec

_FIRST_RETRY = timedelta(seconds=2)
_LONGEST_RETRY = timedelta(minutes=1)


@dataclass(frozen=True)
class Seen:
    """A node as its plan sees it, and as its provider is asked for it."""

    plan: plans.HostSeen
    spec: HostSpec
    ref: HostRef


@dataclass(frozen=True)
class Launched:
    host: HostSeen


@dataclass(frozen=True)
class Impossible:
    why: str
    is_for_good: bool


@dataclass(frozen=True)
class Heard:
    word: HostWord


@dataclass(frozen=True)
class Restarted:
    start: int


@dataclass(frozen=True)
class Unsure:
    """The provider does not know the host, and may not know it yet."""


@dataclass(frozen=True)
class Releasing:
    """The provider has been asked, and does not yet say that the host is gone."""


@dataclass(frozen=True)
class Released:
    """The provider knows the host no longer."""


@dataclass(frozen=True)
class Postponed:
    """The provider has been asked for too many hosts: it is no want of capacity, and nobody is told of it. Who wakes the node does not end it."""

    after: timedelta


Outcome = Postponed | Launched | Impossible | Restarted | Heard | Unsure | Releasing | Released


@dataclass(frozen=True)
class HostReconciler:
    """``boot_token`` derives the token with which a node's agent registers."""

    provider: Provider
    boot_token: Callable[[NodeId], str]

    TABLE: ClassVar[Any] = Host
    SPAN: ClassVar[timedelta] = timedelta(seconds=8)
    ACTS_OUTSIDE: ClassVar[bool] = True

    def observe(self, session: Session, row_id: str, _now: datetime) -> Seen | None:
        node = session.get(Node, row_id)
        if node is None:
            return None
        cluster = session.get_one(Cluster, node.cluster_id)
        group = session.get_one(InstanceGroup, node.group_id)
        spec = host_spec(cluster, group, node, boot_token=self.boot_token(node.id))
        seen = plans.HostSeen(
            NodeState(node.state),
            node.is_wanted,
            _may_retry_at(node),
            is_restarted=node.host_start >= node.starts,
            unsettled_until=_asked_at(node) + self.provider.settles_within,
        )
        return Seen(seen, spec, HostRef(node.id, node.instance_id))

    def plan(self, seen: Seen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen.plan, now)

    def act(self, seen: Seen, action: plans.Action) -> Outcome:
        """Raises ProviderError, Throttled among them: the driver has the row rest."""
        match action:
            case plans.Launch():
                return self._launch(seen.spec)
            case plans.Ask(is_final=is_final):
                return self._ask(seen.ref, is_final=is_final)
            case plans.Release(is_final=is_final):
                return self._release(seen.ref, is_final=is_final)
            case plans.Reboot():
                return self._restart(self.provider.reboot, seen)
            case plans.Reimage():
                return self._restart(self.provider.reimage, seen)

    def settle(self, session: Session, row_id: str, results: tuple[Outcome, ...], now: datetime) -> None:
        node = session.get_one(Node, row_id, populate_existing=True)
        for outcome in results:
            match outcome:
                case Launched(host=host):
                    _settle_host(session, node, host, now)
                case Impossible(why=why, is_for_good=is_for_good):
                    settle_obstacle(session, node, why=why, is_for_good=is_for_good, now=now)
                case Heard(word=word):
                    report_host(session, node, word, now=now)
                case Restarted(start=start):
                    settle_restarted(session, node, start=start, now=now)
                case Released():
                    _settle_gone(session, node, now)
                case Postponed(after=after):
                    settle_postponed(session, node, until=now + after)
                case Releasing() | Unsure():
                    pass

    def _launch(self, spec: HostSpec) -> Outcome:
        try:
            host = self.provider.launch(spec)
        except Throttled as error:
            return Postponed(error.rest)
        except NoCapacity as error:
            return Impossible(str(error), is_for_good=False)
        except Refused as error:
            return Impossible(str(error), is_for_good=True)
        return Launched(replace(host, instance_type=host.instance_type or spec.instance_type))

    def _restart(self, restart: Callable[[HostRef, HostSpec], HostSeen], seen: Seen) -> Outcome:
        try:
            return Restarted(restart(seen.ref, seen.spec).start)
        except HostNotFound:
            return Heard(HostWord.MISSING)
        except Refused as error:
            return Impossible(str(error), is_for_good=True)

    def _ask(self, ref: HostRef, *, is_final: bool) -> Outcome:
        try:
            return Heard(HostWord.ALIVE if self.provider.describe(ref).is_alive else HostWord.DEAD)
        except HostNotFound:
            return Heard(HostWord.MISSING) if is_final else Unsure()

    def _release(self, ref: HostRef, *, is_final: bool) -> Outcome:
        try:
            self.provider.release(ref)
            self.provider.describe(ref)
        except HostNotFound:
            return Released() if is_final else Unsure()
        return Releasing()


def _settle_host(session: Session, node: Node, host: HostSeen, now: datetime) -> None:
    capacity_type = CapacityType(host.market.value)
    settle_placed(session, node, instance_type=host.instance_type, capacity_type=capacity_type, zone=host.zone)
    settle_launched(session, node, instance_id=InstanceId(host.instance_id), address=host.address, now=now)


def _settle_gone(session: Session, node: Node, now: datetime) -> None:
    """Locks in order: the node is locked, its attachments and its jobs follow by id, then its directives."""
    if node.state is not NodeState.RELEASING:
        return
    settle_node(session, node, NodeState.GONE, why="The provider knows the instance no longer.", now=now)
    settle_node_gone(session, node, now=now)
    for job_id in sorted({process.job_id for process in jobs.on_node(session, node.id)}):
        wake(session, jobs.get(session, job_id, lock=True), now=now)
    settle_withdrawn(session, node.id, None, DirectiveState.EXPIRED, now=now)


def _may_retry_at(node: Node) -> datetime | None:
    """After the pause that the place was given, and the one after the latest try."""
    times = [datetime.fromisoformat(node.facts["launch_after"])] if "launch_after" in node.facts else []
    tried_at = node.facts.get("launch_tried_at")
    if tried_at is not None:
        tries = int(node.facts.get("launch_tries", 1))
        times.append(datetime.fromisoformat(tried_at) + min(_LONGEST_RETRY, _FIRST_RETRY * (1 << min(tries - 1, 10))))
    return max(times, default=None)


def _asked_at(node: Node) -> datetime:
    """When the provider was asked for a host last, as far as that is known: a launch that was not noted was made before the release began."""
    if node.state is NodeState.RELEASING and node.launched_at is None:
        return node.state_since
    return node.launched_at or node.state_since
