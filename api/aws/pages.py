"""Opaque page tokens: a cursor, bound to the operation, its filters and its order, and signed.

Stateless, so a token survives restarts and works on every replica; a token of another question is refused instead of answering nonsense.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from models.errors import Invalid

_TAG_BYTES = 16
_PER_PAGE = frozenset({"NextToken", "MaxResults"})
"""What may differ from page to page; everything else is the question."""


class PageTokens:
    """Issues and redeems. The key is derived from the master key, so that a token is never valid for anything else."""

    def __init__(self, master_key: bytes) -> None:
        self._key = hmac.digest(master_key, b"everstep page tokens", "sha256")

    def issue(self, operation: str, members: Mapping[str, Any], cursor: str) -> str:
        """The token that continues after ``cursor``, for the same operation and members only."""
        payload = cursor.encode()
        return base64.urlsafe_b64encode(self._tag(operation, members, payload) + payload).decode().rstrip("=")

    def redeem(self, operation: str, members: Mapping[str, Any]) -> str | None:
        """The cursor inside ``NextToken``, None for the first page.

        Raises:
            Invalid: the token was not issued by this installation for this operation with these filters and this order.
        """
        token = members.get("NextToken")
        if not token:
            return None
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        tag, payload = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        if not payload or not hmac.compare_digest(tag, self._tag(operation, members, payload)):
            raise Invalid(
                message="NextToken is invalid: it belongs to another operation, other filters or another order. Start again without it."
            )
        return payload.decode()

    def _tag(self, operation: str, members: Mapping[str, Any], payload: bytes) -> bytes:
        question = {name: value for name, value in members.items() if name not in _PER_PAGE}
        told = json.dumps([operation, question], sort_keys=True, default=_plain).encode()
        return hmac.digest(self._key, hashlib.sha256(told).digest() + payload, "sha256")[:_TAG_BYTES]


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)
