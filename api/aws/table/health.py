"""Operations of health checks."""

from __future__ import annotations

from api.aws.table.kinds import Table

HEALTH: Table = {}
