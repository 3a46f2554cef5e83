"""Operations of access keys and tokens."""

from __future__ import annotations

from api.own.kinds import OwnTable

KEYS: OwnTable = ()
