"""Operations of scheduler configurations."""

from __future__ import annotations

from api.aws.table.kinds import Table

SCHEDULERS: Table = {}
