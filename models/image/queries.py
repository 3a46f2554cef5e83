"""Reads of image releases, and what follows from them. There are few releases: whoever needs one reads them all, once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.errors import NotFound
from models.image.states import Freshness, ReleaseState
from models.image.table import ImageRelease
from models.paging import Cut, Page, page
from models.session import locked

DEFAULT = "default"
"""The image that groups follow unless they name another one."""


@dataclass(frozen=True)
class Release:
    """A release, apart from its row."""

    version: str
    image_id: str
    is_available: bool
    is_security: bool
    released_at: datetime

    @property
    def rank(self) -> tuple[int, ...]:
        """``1.10.0`` comes after ``1.9.0``."""
        return tuple(int(part) for part in self.version.split("."))


@dataclass(frozen=True)
class Releases:
    """All releases, by their versions. Pure."""

    by_version: dict[str, Release]

    def newest(self, image_id: str = DEFAULT) -> Release | None:
        """The newest release of an image that nodes may start from."""
        return max(self._available(image_id), key=lambda release: release.rank, default=None)

    def newer(self, version: str | None) -> Release | None:
        """The newest available release of the same image, if it comes after this one."""
        now = self.by_version.get(version or "")
        newest = self.newest(DEFAULT if now is None else now.image_id)
        return newest if newest is not None and (now is None or newest.rank > now.rank) else None

    def freshness(self, version: str | None) -> Freshness | None:
        """How a release stands beside the others of its image; None for one that is not registered."""
        now = self.by_version.get(version or "")
        if now is None:
            return None
        if not now.is_available:
            return Freshness.END_OF_LIFE
        later = [release for release in self._available(now.image_id) if release.rank > now.rank]
        if any(release.is_security for release in later):
            return Freshness.SECURITY_UPDATE_REQUIRED
        return Freshness.UPDATE_AVAILABLE if later else Freshness.UP_TO_DATE

    def worst(self, versions: Iterable[str | None]) -> Freshness | None:
        """That of the worst of these releases; None if none is registered."""
        found = {self.freshness(version) for version in versions}
        return next((word for word in reversed(Freshness) if word in found), None)

    def _available(self, image_id: str) -> list[Release]:
        return [release for release in self.by_version.values() if release.is_available and release.image_id == image_id]


def releases(session: Session) -> Releases:
    rows = session.scalars(select(ImageRelease)).all()
    return Releases(
        {
            row.version: Release(row.version, row.image_id, row.state is ReleaseState.AVAILABLE, row.is_security, row.released_at)
            for row in rows
        }
    )


def get(session: Session, version: str, *, lock: bool = False) -> ImageRelease:
    """Raises NotFound."""
    wanted = select(ImageRelease).where(ImageRelease.version == version)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Image release", name=version)
    return row


def listed(session: Session, cut: Cut) -> Page[ImageRelease]:
    """By the time of their release."""
    key = (ImageRelease.released_at, ImageRelease.version)
    return page(session, select(ImageRelease), key, lambda row: (row.released_at, row.version), cut)
