"""Writes of image releases."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models import events
from models.errors import AlreadyExists
from models.events import About
from models.image import queries
from models.image.states import RELEASE, ReleaseState
from models.image.table import ImageRelease
from models.move import advance


def request_release(
    session: Session, version: str, *, image_id: str, is_security: bool = False, note: str | None = None, now: datetime
) -> ImageRelease:
    """Makes a release known. One that is known and was deprecated is available again.

    Raises:
        AlreadyExists: the version is known and available, or is a release of another image.
    """
    fresh = insert(ImageRelease).values(_fresh(version, image_id, is_security=is_security, note=note, now=now))
    if session.execute(fresh.on_conflict_do_nothing().returning(ImageRelease.version)).one_or_none() is not None:
        _record(session, version, f"Image release {version} ({image_id}) is available.", now)
        return queries.get(session, version)
    known = queries.get(session, version, lock=True)
    if known.state is ReleaseState.AVAILABLE or known.image_id != image_id:
        raise AlreadyExists(kind="Image release", name=version)
    known.is_security = is_security
    known.note = note
    advance(RELEASE, known, ReleaseState.AVAILABLE, now=now)
    _record(session, version, f"Image release {version} ({image_id}) is available again.", now)
    return known


def request_release_of_ours(session: Session, version: str, *, now: datetime) -> None:
    """The release that this very version of Everstep is: known from the first start on, and left alone afterwards."""
    fresh = insert(ImageRelease).values(_fresh(version, queries.DEFAULT, is_security=False, note=None, now=now))
    session.execute(fresh.on_conflict_do_nothing())


def request_end_of_life(session: Session, version: str, *, now: datetime) -> ImageRelease:
    """Nothing new starts from the release; nodes that run it go on, and are shown so. Asking again changes nothing.

    Raises:
        NotFound: no such release.
    """
    release = queries.get(session, version, lock=True)
    if release.state is ReleaseState.AVAILABLE:
        advance(RELEASE, release, ReleaseState.END_OF_LIFE, now=now)
        _record(session, version, f"Image release {version} has reached its end of life.", now)
    return release


def _fresh(version: str, image_id: str, *, is_security: bool, note: str | None, now: datetime) -> dict[str, Any]:
    return {
        "version": version,
        "image_id": image_id,
        "state": RELEASE.initial,
        "is_security": is_security,
        "note": note,
        "released_at": now,
    }


def _record(session: Session, version: str, text: str, now: datetime) -> None:
    events.record(session, "image release", text, about=About.IMAGE, details={"version": version}, now=now)
