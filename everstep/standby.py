"""What a node without work holds itself ready for. Part of ``everstep.protocol``.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.protocol import Launch
from everstep.wire import Wire


@dataclass(frozen=True)
class Expected(Wire):
    """How processes of a job would be started here. ``is_alone``: a plain script's only process of a node, which may use all of its threads."""

    launch: Launch
    is_alone: bool = False


@dataclass(frozen=True)
class Standby(Wire):
    """A line ``{"standby": …}`` of the directive stream, whole and level-triggered: what a node of a spare pool may have to run at any moment.

    The agent has everything imported that such a process would import first, while nothing else runs on the node.
    """

    expected: tuple[Expected, ...] = ()
