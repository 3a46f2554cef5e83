"""What the EC2 provider is told by its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from workers.settings import SettingsError

_PREFIX = "EVERSTEP_EC2_"
_KNOWN = frozenset({"IMAGE", "LAUNCH_TEMPLATE", "INSTANCE_PROFILE", "SUBNETS", "SECURITY_GROUPS", "SETTLES_S", "PLANE"})
_SETTLES = timedelta(seconds=60)
ANY_RELEASE = "*"


@dataclass(frozen=True)
class Ec2Options:
    """``images`` are machine images by the release that they stand for; ``subnets`` and ``security_groups`` are for groups that name none.

    ``plane`` is written on everything that is launched, and nothing that does not carry it is ever touched.
    """

    plane: str
    images: Mapping[str, str] = field(default_factory=dict)
    launch_template: str | None = None
    instance_profile: str | None = None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    settles_within: timedelta = _SETTLES

    @classmethod
    def read(cls, variables: Mapping[str, str], *, plane: str) -> Ec2Options:
        """From what begins with ``EVERSTEP_EC2_``, without that; ``plane`` unless they name another one.

        Raises:
            SettingsError: a variable is unknown or cannot be read, or there is nothing to launch from.
        """
        for name in sorted(set(variables) - _KNOWN):
            message = f"{_PREFIX}{name} is not known; there are: {', '.join(_PREFIX + known for known in sorted(_KNOWN))}"
            raise SettingsError(message)
        images, template = _images(variables.get("IMAGE", "")), variables.get("LAUNCH_TEMPLATE") or None
        if not images and template is None:
            message = f"{_PREFIX}IMAGE or {_PREFIX}LAUNCH_TEMPLATE must say which machine image nodes start from"
            raise SettingsError(message)
        return cls(
            plane=variables.get("PLANE") or plane,
            images=images,
            launch_template=template,
            instance_profile=variables.get("INSTANCE_PROFILE") or None,
            subnets=_list(variables.get("SUBNETS", "")),
            security_groups=_list(variables.get("SECURITY_GROUPS", "")),
            settles_within=_seconds(variables.get("SETTLES_S")),
        )

    def image(self, release: str | None) -> str | None:
        """The machine image of a release; None: that of the launch template. A release may be named by its image outright."""
        if release is not None and release.startswith("ami-"):
            return release
        return self.images.get(release or ANY_RELEASE) or self.images.get(ANY_RELEASE)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _images(text: str) -> Mapping[str, str]:
    """``ami-1`` for every release, or ``1.0.0=ami-1,2.0.0=ami-2``, in which ``*`` stands for every other one."""
    found = {}
    for part in _list(text):
        release, is_named, image = part.rpartition("=")
        if not image.startswith("ami-") or (is_named and not release.strip()):
            message = f"{_PREFIX}IMAGE has {part!r}; it must be an image such as ami-0123456789abcdef0, or RELEASE=ami-…"
            raise SettingsError(message)
        found[release.strip() or ANY_RELEASE] = image
    return MappingProxyType(found)


def _seconds(text: str | None) -> timedelta:
    if not text:
        return _SETTLES
    try:
        return timedelta(seconds=float(text))
    except ValueError as error:
        message = f"{_PREFIX}SETTLES_S is {text!r}; it must be a number"
        raise SettingsError(message) from error
