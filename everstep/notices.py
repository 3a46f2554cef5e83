"""That a node is about to go: said by its provider to its agent, and by the control plane to whatever runs there. Part of ``everstep.protocol``.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.wire import Wire


class NoticeKind(StrEnum):
    INTERRUPTION = "interruption"
    """The instance is taken at the deadline."""
    REBALANCE = "rebalance"
    """It is more likely than others to be taken soon: nothing is certain, and there is no deadline."""


@dataclass(frozen=True)
class SpotNotice(Wire):
    """A report: what the provider has said of the instance, as its agent saw it. Told once for each change; ``is_over``: it has been taken back.

    ``deadline`` and ``at`` are in Unix seconds. ``source``: ``imds``, or ``injected`` for one that was made on purpose.
    """

    notice: NoticeKind
    at: float
    deadline: float | None = None
    source: str = "imds"
    is_over: bool = False
    kind: str = "spot_notice"


@dataclass(frozen=True)
class Evacuation(Wire):
    """A line ``{"evacuate": …}`` of the directive stream, whole and level-triggered: what runs on the node must have left by the deadline.

    The agent hands it to the node's training processes, which save at once; it ends what is left there at the deadline. ``deadline`` is in Unix
    seconds, None where there is no certain one. ``is_over``: the node stays after all.
    """

    id: int
    why: str
    deadline: float | None = None
    is_over: bool = False


@dataclass(frozen=True)
class CutReport(Wire):
    """A report: this process had not left its node by the deadline, and was ended. ``why`` the node had to be left; ``at`` in Unix seconds."""

    job: str
    process: str
    why: str
    at: float
    kind: str = "cut"


LEAVING_CAUSE = "A node leaves"
"""How the cause of a generation begins whose members take over from a node that is about to go: they save in its first step."""
