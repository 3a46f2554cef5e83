"""From what is wrong to what the client reads: one table, total by test.

botocore takes the code from the body's ``__type`` and nothing else, and it retries every 5xx: a permanent failure is a 4xx, always.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from api import sigv4
from api.aws.body import Unreadable
from api.aws.validate import Violated
from api.deps import TooLarge
from api.limits import Throttled
from models import errors as domain


class UnknownOperation(Exception):
    """No such operation, or one that is not served here; the message says which."""


@dataclass(frozen=True)
class Code:
    """``__type`` and the HTTP status. ``message`` replaces the exception's own where that would tell too much."""

    name: str
    status: int = 400
    message: str | None = None


_AGAIN = "The service cannot answer right now. Try again."

ERRORS: dict[type[Exception], Code] = {
    # The service's own, by the names of its model.
    domain.NotFound: Code("ResourceNotFound"),
    domain.AlreadyExists: Code("ResourceInUse"),
    domain.LimitExceeded: Code("ResourceLimitExceeded"),
    domain.Taken: Code("ConflictException"),
    domain.NamespaceTaken: Code("ConflictException"),
    domain.Kept: Code("ConflictException"),
    domain.Outdated: Code("ConflictException"),
    domain.InTransition: Code("ConflictException"),
    domain.Leaving: Code("ConflictException"),
    domain.InUse: Code("ConflictException"),
    domain.IllegalMove: Code("ConflictException"),
    # Those of every AWS service.
    domain.Invalid: Code("ValidationException"),
    domain.Immutable: Code("ValidationException"),
    domain.Unsupported: Code("ValidationException"),
    domain.DomainError: Code("ValidationException"),
    Violated: Code("ValidationException"),
    Unreadable: Code("SerializationException"),
    UnknownOperation: Code("UnknownOperationException"),
    TooLarge: Code("RequestEntityTooLargeException", 413),
    # Who is calling.
    domain.Unauthenticated: Code("UnrecognizedClientException", 403),
    sigv4.MissingSignature: Code("MissingAuthenticationTokenException", 403),
    sigv4.UnknownKey: Code("UnrecognizedClientException", 403),
    sigv4.WrongSignature: Code("InvalidSignatureException", 403),
    sigv4.IncompleteSignature: Code("IncompleteSignatureException", 400),
    domain.Forbidden: Code("AccessDeniedException"),
    Throttled: Code("ThrottlingException"),
    # Passing: clients try again by themselves.
    domain.StaleLease: Code("ServiceUnavailable", 503, _AGAIN),
    OperationalError: Code("ServiceUnavailable", 503, _AGAIN),
    InterfaceError: Code("ServiceUnavailable", 503, _AGAIN),
    PoolExhausted: Code("ServiceUnavailable", 503, _AGAIN),
}

CRASH = Code("InternalFailure", 500, "An internal error occurred; the server's log has it under this request id.")


def code_of(error: Exception) -> Code:
    """The entry of the nearest class in the table; ``CRASH`` for what nobody has foreseen."""
    return next((ERRORS[cls] for cls in type(error).__mro__ if cls in ERRORS), CRASH)
