"""A node's health as its plan sees it, and what the plan can answer. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from models.condition.states import ConditionState, FaultClass, Repair, Source
from models.ids import ConditionId
from models.node.labels import Worn
from models.node.states import NodeState, Schedulability
from workers.plans import brake
from workers.plans.brake import Brake, HoldRepairs


class Unknown(StrEnum):
    """What is done about a code that no table knows."""

    LABEL = "label"
    REBOOT = "reboot"
    IGNORE = "ignore-with-event"


@dataclass(frozen=True)
class Policy:
    """``window``: the same fault again within it, after a reboot, calls for another host. ``suspect``: a sign that lasts so long is believed.

    ``drain``: how long work has to leave a host that still works. ``quarantine``: for how long a node is kept from work because of a code that
    nobody knows. ``remind``: how often people are told of a node that waits for them.
    """

    unknown: Unknown = Unknown.LABEL
    window: timedelta = timedelta(hours=24)
    suspect: timedelta = timedelta(seconds=5)
    drain: timedelta = timedelta(minutes=2)
    quarantine: timedelta = timedelta(hours=1)
    remind: timedelta = timedelta(minutes=30)
    transients: int = 3
    """So many transient faults of one code on one device within the window call for a new start; those of one ``burst`` count once."""
    burst: timedelta = timedelta(minutes=1)
    limits: brake.Limits = field(default_factory=brake.Limits)


@dataclass(frozen=True)
class ConditionSeen:
    """``reboots``: how often the same place was rebooted for the same fault within the window. ``start``: the host's start at which it was seen.

    ``struck``: when the same device had the same transient fault since that start, within the window, this time included.
    """

    id: ConditionId
    state: ConditionState
    state_since: datetime
    fault_class: FaultClass
    code: str
    told_at: datetime
    source: Source = Source.AGENT
    type: str = ""
    reason: str = ""
    seen: int = 1
    start: int = 0
    reboots: int = 0
    struck: tuple[datetime, ...] = ()


@dataclass(frozen=True)
class HealthSeen:
    """``is_free``: no restart and no move is under way. ``shown``: why the node shows as Unschedulable whatever its conditions say."""

    state: NodeState
    schedulability: Schedulability = Schedulability.SCHEDULABLE
    conditions: tuple[ConditionSeen, ...] = ()
    is_wanted: bool = True
    is_free: bool = True
    has_reboot_to_call_off: bool = False
    """Whether a reboot was asked for by no person, and has not begun."""
    is_busy: bool = False
    starts: int = 0
    leave_by: datetime | None = None
    leave_why: str | None = None
    is_recovered: bool = True
    """Whether the cluster lets us repair (NodeRecovery Automatic)."""
    brake: Brake = brake.OPEN
    worn: Worn = field(default_factory=Worn)
    declared: Worn = field(default_factory=Worn)
    declared_before: Worn = field(default_factory=Worn)
    deep_check: Mapping[str, str] = field(default_factory=dict)
    """The label of its deep health checks; empty: it wears none. A node that is examined, or failed, takes no work."""
    is_kept_from_work: bool = False
    replaced: int = 0
    """How many hosts before this one were replaced at its place within the window, because of what was the matter with them."""
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True)
class Conclude:
    """A condition's new state. ``repair`` is what was decided, if it was now."""

    condition: ConditionId
    new: ConditionState
    why: str
    repair: Repair | None = None


@dataclass(frozen=True)
class RestartProcess:
    """The process that it struck starts anew."""

    condition: ConditionId
    why: str


@dataclass(frozen=True)
class Mark:
    schedulability: Schedulability
    why: str


@dataclass(frozen=True)
class Leave:
    by: datetime
    why: str


@dataclass(frozen=True)
class Stay:
    why: str


@dataclass(frozen=True)
class Reboot:
    why: str


@dataclass(frozen=True)
class CallOff:
    """The reboot that was asked for here, and has not begun, is not to be."""

    why: str


@dataclass(frozen=True)
class Replace:
    """``failures``: how many hosts in a row have come to nothing at this place. The next one is waited for the longer."""

    why: str
    failures: int = 0


@dataclass(frozen=True)
class Remind:
    condition: ConditionId
    why: str


@dataclass(frozen=True)
class Dress:
    worn: Worn
    why: str


Action = Conclude | RestartProcess | Mark | Leave | Stay | Reboot | CallOff | Replace | HoldRepairs | Remind | Dress
