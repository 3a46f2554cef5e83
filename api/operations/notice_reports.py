"""Takes in what agents report of their providers' notices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from everstep.notices import SpotNotice
from models.node.table import Node


def _notice(session: Session, node: Node, report: SpotNotice, now: datetime) -> None:
    """The provider has said that it takes the node, or that it may."""


TELL: Final[dict[type[Any], Callable[[Session, Node, Any, datetime], None]]] = {SpotNotice: _notice}
