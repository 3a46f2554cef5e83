"""Names of requests."""

from __future__ import annotations

import uuid


def new_request_id() -> str:
    """What an answer and the log have in common; AWS's clients print it with every error."""
    return str(uuid.uuid4())
