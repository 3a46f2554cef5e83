"""Operations of image releases."""

from __future__ import annotations

from api.own.kinds import OwnTable

IMAGES: OwnTable = ()
