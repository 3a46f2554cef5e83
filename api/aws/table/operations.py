"""Operations that tell of operations."""

from __future__ import annotations

from api.aws.table.kinds import Table

OPERATIONS: Table = {}
