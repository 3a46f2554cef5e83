"""``Idempotency-Key``: of a request that comes again, the first one's answer is given again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import Response

from api.operations.work import Work
from models import replay
from models.errors import Invalid

HEADER: Final = "idempotency-key"
REPLAYED: Final = "idempotency-replayed"
_LONGEST: Final = 255


def once(work: Work, key: str | None, request: Mapping[str, Any], carry_out: Callable[[], Response]) -> Response:
    """Carries a request out, inside the caller's transaction; with a key that was used for it before, returns the answer of that time.

    ``request`` is all that tells one request from another. Only what was carried out is kept: after an error the key is as good as new.

    Raises:
        Invalid: the key cannot be one, or was used for another request within the last eight hours.
    """
    if key is None:
        return carry_out()
    if not 1 <= len(key) <= _LONGEST or not (key.isascii() and key.isprintable()):
        raise Invalid(message=f"Idempotency-Key must be 1 to {_LONGEST} printable ASCII characters.")
    scope = f"rest {work.account_id} {work.caller.key_id or work.caller.name}"
    before = replay.recall(work.session, scope, key, request, now=work.now)
    if before is not None:
        body = b"" if before["body"] is None else json.dumps(before["body"]).encode()
        return Response(body, before["status"], {**before["headers"], REPLAYED: "true"})
    answer = carry_out()
    kept = {
        "status": answer.status_code,
        "headers": {name: value for name, value in answer.headers.items() if name != "content-length"},
        "body": json.loads(bytes(answer.body)) if answer.body else None,
    }
    replay.remember(work.session, scope, key, request, kept, now=work.now)
    return answer
