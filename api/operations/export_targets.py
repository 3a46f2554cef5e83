"""Where callers may have exports written.

An export is written with the rights of this installation: to any file that its workers may write, and to any bucket that their keys open. So a caller
names a place only below one of those that the operator has allowed (``EVERSTEP_EXPORT_TO``); none is allowed by default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from models.errors import Forbidden, Invalid

_PLACE = re.compile(r"(s3://[a-z0-9][a-z0-9.-]*|file://)(/[A-Za-z0-9_=+@.-]+)+/?")
"""No escapes, queries, users or empty parts: what is compared here is what the store will read."""


def is_place(url: str) -> bool:
    """Whether it is an address to export to: a bucket or a folder, and a path that climbs nowhere."""
    return _PLACE.fullmatch(url) is not None and not {".", ".."} & set(url.split("/"))


def check_target(target: str, allowed: Sequence[str], *, team: str | None) -> None:
    """Whether a caller may have an export written there.

    Raises:
        Invalid: it is no address to export to.
        Forbidden: it is below none of the allowed places, or the caller is bound to a team.
    """
    if team is not None:
        raise Forbidden(message="Target: a caller who is bound to a team exports to this installation's own place; leave it out.")
    if not is_place(target):
        raise Invalid(
            message=f"Target: '{target}' is no address to export to; write s3://bucket/path or file:///path, of plain characters."
        )
    if not any(target.startswith(f"{place.rstrip('/')}/") for place in allowed):
        places = f"below {' or '.join(allowed)}" if allowed else "nowhere else than in its own place"
        raise Forbidden(
            message=f"Target: this installation exports {places}; leave it out, or have '{target}' allowed by EVERSTEP_EXPORT_TO."
        )
