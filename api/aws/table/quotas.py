"""Operations of compute quotas."""

from __future__ import annotations

from api.aws.table.kinds import Table

QUOTAS: Table = {}
