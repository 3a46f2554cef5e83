"""Volumes and interfaces: what the provider is asked to attach to hosts and to detach, made in no transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.node.states import NodeState
from models.node.table import Node
from models.volume.changes import settle_attachment
from models.volume.states import AttachmentKind, AttachmentState
from models.volume.table import Attachment
from workers.plans import attachment as plans
from workers.plans.decision import Decision
from workers.providers.base import HostNotFound, HostRef, InUse, Provider, Refused, Volume


@dataclass(frozen=True)
class Seen:
    """An attachment as its plan sees it, and as the provider is asked for it."""

    plan: plans.AttachmentSeen
    ref: HostRef
    kind: AttachmentKind
    resource_id: str
    device: str


@dataclass(frozen=True)
class Outcome:
    new: AttachmentState
    why: str


@dataclass(frozen=True)
class AttachmentReconciler:
    provider: Provider

    TABLE: ClassVar[Any] = Attachment
    SPAN: ClassVar[timedelta] = timedelta(seconds=8)
    ACTS_OUTSIDE: ClassVar[bool] = True

    def observe(self, session: Session, row_id: str, _now: datetime) -> Seen | None:
        attachment = session.get(Attachment, row_id)
        if attachment is None:
            return None
        node = session.get_one(Node, attachment.node_id)
        seen = plans.AttachmentSeen(AttachmentState(attachment.state), node_is_gone=node.state is NodeState.GONE)
        ref = HostRef(node.id, node.instance_id)
        return Seen(seen, ref, AttachmentKind(attachment.kind), attachment.resource_id, attachment.device or "")

    def plan(self, seen: Seen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen.plan, now)

    def act(self, seen: Seen, action: plans.Action) -> Outcome | None:
        """None: the host is not found; whether it is gone is its node's plan's business."""
        try:
            match action:
                case plans.Forget(why=why):
                    return Outcome(AttachmentState.DETACHED, why)
                case plans.Attach():
                    self._attach(seen)
                    return Outcome(AttachmentState.ATTACHED, f"{seen.resource_id} is attached.")
                case plans.Detach():
                    if seen.kind is AttachmentKind.VOLUME:
                        self.provider.detach_volume(seen.ref, seen.resource_id)
                    return Outcome(AttachmentState.DETACHED, f"{seen.resource_id} is detached.")
        except InUse as error:
            return Outcome(AttachmentState.BUSY, str(error))
        except Refused as error:
            return Outcome(AttachmentState.DETACHED, str(error))
        except HostNotFound:
            return None

    def _attach(self, seen: Seen) -> None:
        if seen.kind is AttachmentKind.VOLUME:
            self.provider.attach_volume(seen.ref, Volume(seen.resource_id, seen.device))
        else:
            self.provider.attach_interface(seen.ref, seen.resource_id)

    def settle(self, session: Session, row_id: str, results: tuple[Outcome | None, ...], now: datetime) -> None:
        """What was asked for meanwhile goes first: an attachment that is to end by now is not called attached."""
        attachment = session.get_one(Attachment, row_id, populate_existing=True)
        node = session.get_one(Node, attachment.node_id)
        for outcome in results:
            if outcome is None or attachment.state is AttachmentState.DETACHED:
                continue
            if attachment.state is AttachmentState.DETACHING and outcome.new is not AttachmentState.DETACHED:
                continue
            settle_attachment(session, node, attachment, outcome.new, why=outcome.why, now=now)
