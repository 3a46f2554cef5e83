"""Operations of alarms, which roll a software update back."""

from __future__ import annotations

from api.own.kinds import OwnTable

ALARMS: OwnTable = ()
