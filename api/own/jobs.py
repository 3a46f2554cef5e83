"""Operations of training jobs."""

from __future__ import annotations

from api.own.kinds import OwnTable

JOBS: OwnTable = ()
