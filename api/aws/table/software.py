"""Operations of node software."""

from __future__ import annotations

from api.aws.table.kinds import Table

SOFTWARE: Table = {}
