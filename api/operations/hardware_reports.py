"""Takes in what agents report of their accelerators."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from everstep.hardware import HardwareFault, HardwareReport
from models.node.table import Node


def _hardware(_: Session, node: Node, report: HardwareReport, now: datetime) -> None:
    """What the node has, as it is now."""
    node.facts = {**node.facts, "hardware": report.to_wire(), "hardware_at": now.isoformat()}


def _fault(session: Session, node: Node, report: HardwareFault, now: datetime) -> None:
    """One occurrence."""


TELL: Final[dict[type[Any], Callable[[Session, Node, Any, datetime], None]]] = {
    HardwareReport: _hardware,
    HardwareFault: _fault,
}
