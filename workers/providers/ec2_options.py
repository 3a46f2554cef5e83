"""What the EC2 provider is told by its settings."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from urllib.parse import urlsplit

from workers.settings import EC2, Settings, SettingsError

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
    def read(cls, settings: Settings) -> Ec2Options:
        """All workers of a control plane have its master key, and nobody else has: its name follows from that unless it is set.

        Raises:
            SettingsError: a variable is unknown or cannot be read, there is nothing to launch from, or nodes could not reach us.
        """
        variables = settings.ec2
        _check_reach(settings)
        for name in sorted(set(variables) - _KNOWN):
            message = f"{EC2}{name} is not known; there are: {', '.join(EC2 + known for known in sorted(_KNOWN))}"
            raise SettingsError(message)
        images, template = _images(variables.get("IMAGE", "")), variables.get("LAUNCH_TEMPLATE") or None
        if not images and template is None:
            message = f"{EC2}IMAGE or {EC2}LAUNCH_TEMPLATE must say which machine image nodes start from"
            raise SettingsError(message)
        return cls(
            plane=variables.get("PLANE") or _plane(settings.master_key),
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


def _plane(master_key: bytes) -> str:
    return hmac.digest(master_key, b"everstep plane", "sha256").hex()[:24]


def _check_reach(settings: Settings) -> None:
    host = urlsplit(settings.api_url).hostname or ""
    if host == "localhost" or host.startswith("127."):
        message = f"EVERSTEP_API_URL is {settings.api_url}, which instances of EC2 cannot reach; it must be an address within their network"
        raise SettingsError(message)
    if not settings.object_store_url.startswith("s3://"):
        message = f"EVERSTEP_OBJECT_STORE_URL is {settings.object_store_url}, which instances of EC2 cannot reach; it must be s3://BUCKET/PREFIX"
        raise SettingsError(message)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _images(text: str) -> Mapping[str, str]:
    """``ami-1`` for every release, or ``1.0.0=ami-1,2.0.0=ami-2``, in which ``*`` stands for every other one."""
    found = {}
    for part in _list(text):
        release, is_named, image = part.rpartition("=")
        if not image.startswith("ami-") or (is_named and not release.strip()):
            message = f"{EC2}IMAGE has {part!r}; it must be an image such as ami-0123456789abcdef0, or RELEASE=ami-…"
            raise SettingsError(message)
        found[release.strip() or ANY_RELEASE] = image
    return MappingProxyType(found)


def _seconds(text: str | None) -> timedelta:
    if not text:
        return _SETTLES
    try:
        return timedelta(seconds=float(text))
    except ValueError as error:
        message = f"{EC2}SETTLES_S is {text!r}; it must be a number"
        raise SettingsError(message) from error
