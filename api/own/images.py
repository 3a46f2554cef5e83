"""Operations of image releases."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from api.operations import images
from api.operations.images import ReleaseWish
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, NextToken, Wire, word
from models.errors import AlreadyExists, NotFound
from models.image.queries import DEFAULT
from models.image.table import ImageRelease
from models.paging import Cut

Version = Annotated[str, StringConstraints(pattern=r"^\d{1,4}\.\d{1,4}\.\d{1,4}$")]
ImageId = Annotated[str, StringConstraints(pattern=r"^(ami-[0-9a-fA-F]{8,17}|default)$")]


class NewRelease(Asked):
    """``image_id`` names the image that this is a release of; ``is_security`` that nodes on older ones of it are not safe any more."""

    version: Version
    image_id: ImageId = DEFAULT
    is_security: bool = False
    note: Annotated[str, StringConstraints(max_length=1024)] | None = None


class OneRelease(Asked):
    version: Version


class ReleasesWanted(Asked):
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class ReleaseShape(Wire):
    """``status`` is Available, or EndOfLife: then nothing new starts from it."""

    version: str
    image_id: str
    status: str
    is_security: bool
    note: str | None
    released_at: datetime


class ReleaseList(Wire):
    releases: tuple[ReleaseShape, ...]
    next_token: str | None = None


def register(work: Work, asked: NewRelease) -> ReleaseShape:
    """Makes a release known that nodes can start from. One that was deprecated is available again."""
    wish = ReleaseWish(asked.version, asked.image_id, is_security=asked.is_security, note=asked.note)
    return _shape(images.register(work, wish))


def deprecate(work: Work, asked: OneRelease) -> ReleaseShape:
    """Ends a release's life: nothing new starts from it, and nodes that run it are shown as EndOfLife."""
    return _shape(images.deprecate(work, asked.version))


def listing(work: Work, asked: ReleasesWanted) -> ReleaseList:
    """The releases that nodes can start from, newest first, and those that have reached their end of life."""
    found = images.listed(work, Cut(limit=asked.max_results, is_descending=True, cursor=asked.next_token))
    return ReleaseList(releases=tuple(_shape(row) for row in found.rows), next_token=found.cursor)


def _shape(row: ImageRelease) -> ReleaseShape:
    return ReleaseShape(
        version=row.version,
        image_id=row.image_id,
        status=word(row.state),
        is_security=row.is_security,
        note=row.note,
        released_at=row.released_at,
    )


IMAGES: OwnTable = (
    Own(
        "RegisterImageRelease",
        "POST",
        "/v1/image-releases",
        NewRelease,
        ReleaseShape,
        register,
        status=201,
        errors=(AlreadyExists,),
    ),
    Own("ListImageReleases", "GET", "/v1/image-releases", ReleasesWanted, ReleaseList, listing, page_of="releases"),
    Own(
        "DeprecateImageRelease",
        "POST",
        "/v1/image-releases/{version}/deprecate",
        OneRelease,
        ReleaseShape,
        deprecate,
        errors=(NotFound,),
    ),
)
