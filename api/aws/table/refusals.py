"""Operations of the cluster family that are refused."""

from __future__ import annotations

from api.aws.table.kinds import Table

REFUSALS: Table = {}
