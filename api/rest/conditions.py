"""ETags and the conditions that callers put on them (RFC 9110): what a caller has seen must still be so, or must have changed."""

from __future__ import annotations

import re
from typing import Final

from models.errors import Invalid

ANY: Final = "*"
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e]*)"')


class PreconditionFailed(Exception):
    """What If-Match names is not the present revision; read it again, and decide again."""


class Unmodified(Exception):
    """The caller has the present revision already."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        super().__init__(revision)


def tag(revision: str) -> str:
    """A revision as the ETag header has it."""
    return f'"{revision}"'


def check_match(header: str, revision: str) -> None:
    """Raises PreconditionFailed, or Invalid for a header that cannot be read. A weak tag matches nothing here, as the RFC has it."""
    wanted = _read(header, "If-Match")
    if wanted is not None and revision not in {name for is_weak, name in wanted if not is_weak}:
        message = f"If-Match: the resource's ETag is {tag(revision)} by now; read it again."
        raise PreconditionFailed(message)


def check_none_match(header: str, revision: str) -> None:
    """Raises Unmodified, or Invalid for a header that cannot be read."""
    held = _read(header, "If-None-Match")
    if held is None or revision in {name for _, name in held}:
        raise Unmodified(revision)


def _read(header: str, name: str) -> list[tuple[bool, str]] | None:
    """The tags, each with whether it is weak; None for any."""
    if header.strip() == ANY:
        return None
    tags = [_TAG.fullmatch(part.strip()) for part in header.split(",")]
    if not all(tags):
        raise Invalid(message=f'{name} must be * or a list of ETags in double quotes, such as "4f1c"; got {header[:100]!r}.')
    return [(bool(found[1]), found[2]) for found in tags if found]
