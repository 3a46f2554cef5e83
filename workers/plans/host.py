"""What to do at the provider for one node. Pure: same snapshot, same actions.

This is the half of a node's reconciliation that calls the outside world and may hang doing so; it runs in the slow lane under a lease of its
own. What follows from the answers is concluded by the node's plan, in the fast lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from models.node.states import NodeState
from workers.plans.decision import Decision

WATCHED_EVERY = timedelta(seconds=5)
"""A host that boots, and one that is suspected and said to be alive, is asked about again."""
RELEASED_EVERY = timedelta(seconds=1)
"""Released until the provider knows it no longer."""


@dataclass(frozen=True)
class HostSeen:
    """``may_retry_at`` is the earliest time for another launch, after one that was impossible."""

    state: NodeState
    is_wanted: bool = True
    may_retry_at: datetime | None = None


@dataclass(frozen=True)
class Launch:
    why: str


@dataclass(frozen=True)
class Ask:
    why: str


@dataclass(frozen=True)
class Release:
    why: str


Action = Launch | Ask | Release


def plan(seen: HostSeen, now: datetime) -> Decision[Action]:
    """What to do at the provider for one node."""
    if seen.state is NodeState.REQUESTED and seen.is_wanted:
        if seen.may_retry_at is not None and seen.may_retry_at > now:
            return Decision((), seen.may_retry_at - now)
        return Decision((Launch("The node was requested."),), timedelta(0))
    if seen.state in (NodeState.BOOTING, NodeState.SUSPECT):
        return Decision((Ask(f"The node is {seen.state}."),), WATCHED_EVERY)
    if seen.state is NodeState.CHECKING:
        return Decision((Ask("The node runs its checks."),), WATCHED_EVERY * 2)
    if seen.state is NodeState.RELEASING:
        return Decision((Release("The node is being released."),), RELEASED_EVERY)
    return Decision()
