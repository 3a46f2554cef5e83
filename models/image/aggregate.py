"""All image releases as one value of another statement, so that whoever needs them beside something else asks once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from sqlalchemy import JSON, func, select

from models.image.queries import Release, Releases
from models.image.states import ReleaseState
from models.image.table import ImageRelease

_FIELDS: Final = (
    ImageRelease.version,
    ImageRelease.image_id,
    ImageRelease.state,
    ImageRelease.is_security,
    ImageRelease.released_at,
)
RELEASES: Final = select(func.json_agg(func.json_build_array(*_FIELDS), type_=JSON)).scalar_subquery()
"""None where there are none."""


def read_releases(value: Iterable[tuple[Any, ...]] | None) -> Releases:
    """What ``RELEASES`` has come to."""
    return Releases(
        {
            version: Release(version, image_id, state == ReleaseState.AVAILABLE, is_security, datetime.fromisoformat(released_at))
            for version, image_id, state, is_security, released_at in value or ()
        }
    )
