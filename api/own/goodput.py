"""Operations that tell how much of a job's time was productive."""

from __future__ import annotations

from api.own.kinds import OwnTable

GOODPUT: OwnTable = ()
