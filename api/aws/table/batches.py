"""Operations on several nodes at once, and on what is attached to a node."""

from __future__ import annotations

from api.aws.table.kinds import Table

BATCHES: Table = {}
