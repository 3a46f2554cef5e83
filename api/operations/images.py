"""Use-cases of image releases, and the releases that groups ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from api.operations.work import Work
from models.cluster.changes import GroupSpec
from models.cluster.table import InstanceGroup
from models.errors import Invalid
from models.image import changes, queries
from models.image.queries import DEFAULT, Release, Releases
from models.image.table import ImageRelease
from models.paging import Cut, Page


@dataclass(frozen=True)
class ReleaseWish:
    version: str
    image_id: str = DEFAULT
    is_security: bool = False
    note: str | None = None


def register(work: Work, wish: ReleaseWish) -> ImageRelease:
    """Raises AlreadyExists."""
    return changes.request_release(
        work.session, wish.version, image_id=wish.image_id, is_security=wish.is_security, note=wish.note, now=work.now
    )


def deprecate(work: Work, version: str) -> ImageRelease:
    """Raises NotFound."""
    return changes.request_end_of_life(work.session, version, now=work.now)


def listed(work: Work, cut: Cut) -> Page[ImageRelease]:
    return queries.listed(work.session, cut)


def with_images(
    work: Work, groups: Iterable[GroupSpec], present: Mapping[str, InstanceGroup], *, is_continuous: bool
) -> tuple[GroupSpec, ...]:
    """The specifications with the release that their nodes are to start from. A group that is there keeps its release.

    A new group starts from the newest release of its image; without a word about it, in a continuous cluster from that of the oldest group,
    so that a cluster's nodes do not differ by the time at which their group was added.

    Raises:
        Invalid: a release or image that is not known or has reached its end of life, or a change of an existing group's.
    """
    known = queries.releases(work.session)
    oldest = min(present.values(), key=lambda group: group.position, default=None) if is_continuous else None
    inherited = None if oldest is None else oldest.image_wanted
    return tuple(_with_image(known, group, present.get(group.name), inherited) for group in groups)


def find(known: Releases, *, version: str | None, image_id: str | None, where: str) -> Release | None:
    """The release that is asked for; the newest of the default image if nothing is said, None if there is none at all.

    Raises:
        Invalid: it is not known, has reached its end of life, or is a release of another image.
    """
    if version is None:
        found = known.newest(image_id or DEFAULT)
        if found is None and image_id not in (None, DEFAULT):
            raise Invalid(
                message=f"ImageId '{image_id}' {where} does not exist: register a release of it with RegisterImageRelease."
            )
        return found
    release = known.by_version.get(version)
    if release is None:
        raise Invalid(
            message=f"ImageReleaseVersion '{version}' {where} does not exist: register it with RegisterImageRelease, or choose one that ListImageReleases shows."
        )
    if not release.is_available:
        raise Invalid(message=f"ImageReleaseVersion '{version}' {where} has reached its end of life: choose a later one.")
    if image_id is not None and release.image_id != image_id:
        raise Invalid(
            message=f"ImageReleaseVersion '{version}' {where} is a release of image '{release.image_id}', not of '{image_id}'."
        )
    return release


def _with_image(known: Releases, group: GroupSpec, present: InstanceGroup | None, inherited: str | None) -> GroupSpec:
    where = f"of instance group '{group.name}'"
    if present is not None:
        _check_unchanged(known, group.spec, present, where)
        return replace(group, image=present.image_wanted)
    version, image_id = group.spec.get("ImageReleaseVersion"), group.spec.get("ImageId")
    if version is None and image_id is None and inherited is not None:
        return replace(group, image=inherited)
    release = find(known, version=version, image_id=image_id, where=where)
    return replace(group, image=None if release is None else release.version)


def _check_unchanged(known: Releases, spec: Mapping[str, Any], present: InstanceGroup, where: str) -> None:
    """What a group was asked for may be repeated, and so may what it runs now."""
    wanted = known.by_version.get(present.image_wanted or "")
    now = {"ImageId": None if wanted is None else wanted.image_id, "ImageReleaseVersion": present.image_wanted}
    for member, value in now.items():
        if member in spec and spec[member] not in (present.spec.get(member), value):
            raise Invalid(message=f"{member} {where} cannot be changed by UpdateCluster: use UpdateClusterSoftware.")
