"""What to do at the provider for one node. Pure: same snapshot, same actions.

This is the half of a node's reconciliation that calls the outside world and may hang doing so; it runs in the slow lane under a lease of its
own. What follows from the answers is concluded by the node's plan, in the fast lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from models.node.states import RESTARTING, NodeState
from workers.plans.decision import Decision

WATCHED_EVERY = timedelta(seconds=5)
"""A host that boots, and one that is suspected and said to be alive, is asked about again."""
RELEASED_EVERY = timedelta(seconds=1)
"""Released until the provider knows it no longer."""


@dataclass(frozen=True)
class HostSeen:
    """``may_retry_at`` is the earliest time for another launch, after one that was impossible.

    ``unsettled_until`` is when the provider's answers follow from what it was asked for last: a host that it does not know before may yet appear.
    """

    state: NodeState
    is_wanted: bool = True
    may_retry_at: datetime | None = None
    is_restarted: bool = True
    """Whether the provider has carried out the start that is wanted."""
    unsettled_until: datetime | None = None


@dataclass(frozen=True)
class Launch:
    why: str


@dataclass(frozen=True)
class Ask:
    """``is_final``: that the provider knows no such host is to be believed."""

    why: str
    is_final: bool = True


@dataclass(frozen=True)
class Release:
    why: str
    is_final: bool = True


@dataclass(frozen=True)
class Reboot:
    why: str


@dataclass(frozen=True)
class Reimage:
    why: str


Action = Launch | Ask | Release | Reboot | Reimage


def plan(seen: HostSeen, now: datetime) -> Decision[Action]:
    """What to do at the provider for one node."""
    if seen.state is NodeState.REQUESTED and seen.is_wanted:
        if seen.may_retry_at is not None and seen.may_retry_at > now:
            return Decision((), seen.may_retry_at - now)
        return Decision((Launch("The node was requested."),), timedelta(0))
    is_final = seen.unsettled_until is None or seen.unsettled_until <= now
    if seen.state in RESTARTING and not seen.is_restarted and seen.is_wanted:
        why = f"The node is {seen.state}."
        return Decision((Reboot(why) if seen.state is NodeState.REBOOTING else Reimage(why),), WATCHED_EVERY)
    if seen.state in (NodeState.BOOTING, NodeState.SUSPECT, *RESTARTING):
        return Decision((Ask(f"The node is {seen.state}.", is_final),), WATCHED_EVERY)
    if seen.state is NodeState.CHECKING:
        return Decision((Ask("The node runs its checks.", is_final),), WATCHED_EVERY * 2)
    if seen.state is NodeState.RELEASING:
        return Decision((Release("The node is being released.", is_final),), RELEASED_EVERY)
    return Decision()
