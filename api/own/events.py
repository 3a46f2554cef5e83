"""Operations that tell what happened."""

from __future__ import annotations

from api.own.kinds import OwnTable

EVENTS: OwnTable = ()
