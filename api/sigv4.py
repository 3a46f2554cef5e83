"""Verifies AWS Signature Version 4, as a client put it into the ``Authorization`` header.

The expected signature is computed over exactly the headers that the client signed; botocore's own signer, which every client of ours uses or
follows, is the oracle of the tests. ``verify`` looks at the request as it came over the wire: raw path, raw query, raw body, Host with its port.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from urllib.parse import quote

from botocore.utils import normalize_url_path

SERVICES = ("sagemaker", "everstep")
SKEW = timedelta(minutes=15)
"""AWS's own span: clocks of laptops are off by minutes, and a replay within it needs the exact body."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_STAMP = "%Y%m%dT%H%M%SZ"
_HEADER = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<credential>[^,\s]+),\s*SignedHeaders=(?P<signed>[^,\s]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_BASIC = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SCOPE_PARTS = 5
_MUST_BE_SIGNED = ("host", "x-amz-date", "x-amz-target", "x-amz-security-token", "x-amz-content-sha256")
"""Of these, whichever are sent: an unsigned one could be changed on the way, and with it what the request does."""


class SignatureError(Exception):
    """The request is not signed as it must be; the message is for the client."""


class MissingSignature(SignatureError):
    """There is no Authorization header."""


class IncompleteSignature(SignatureError):
    """The Authorization header cannot be read, or a header that has to be signed is not."""


class UnknownKey(SignatureError):
    """There is no such access key, or it is revoked."""


class WrongSignature(SignatureError):
    """Signature, scope or date do not hold."""


@dataclass(frozen=True)
class SignedRequest:
    """A request as it came over the wire. ``headers`` have lower-case names; ``path`` and ``query`` are raw.

    ``source`` is the address that it came from, where that is known.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    source: str | None = None


@dataclass(frozen=True)
class Scope:
    """Who signed, for what: ``AKID/20260101/us-east-1/sagemaker/aws4_request``."""

    access_key_id: str
    date: str
    region: str
    service: str


def verify(request: SignedRequest, *, now: datetime, secret_of: Callable[[str], str | None]) -> Scope:
    """Returns who has signed the request. ``secret_of`` maps an access key id to its secret, None if there is no such key.

    Raises:
        SignatureError: one of its kinds, with the message that the client is to read.
    """
    scope, signed, signature = _read_header(request.headers.get("authorization", ""))
    stamp = _read_stamp(request.headers.get("x-amz-date"))
    _check_signed(signed, request.headers)
    secret = secret_of(scope.access_key_id)
    if secret is None:
        message = "The security token included in the request is invalid."
        raise UnknownKey(message)
    moment = request.headers["x-amz-date"]
    _check_scope(scope, moment)
    if not hmac.compare_digest(_expected(request, scope, signed, moment, secret), signature):
        message = (
            "The request signature we calculated does not match the signature you provided. Check your secret access key and signing "
            "method; a proxy that rewrites the Host header also breaks signatures."
        )
        raise WrongSignature(message)
    # After the signature: whoever does not hold the key learns nothing about our clock, and a tampered date reads as tampered.
    _check_skew(stamp, now)
    return scope


def _read_header(header: str) -> tuple[Scope, tuple[str, ...], str]:
    if not header:
        message = "Missing Authentication Token"
        raise MissingSignature(message)
    if not header.startswith(_ALGORITHM):
        message = f"Authorization header must use {_ALGORITHM}: this door takes signatures of AWS Signature Version 4"
        raise IncompleteSignature(message)
    found = _HEADER.fullmatch(header.strip())
    if found is None:
        message = (
            "Authorization header requires 'Credential', 'SignedHeaders' and 'Signature' (64 hex digits) parameters, in this order"
        )
        raise IncompleteSignature(message)
    parts = found["credential"].split("/")
    if len(parts) != _SCOPE_PARTS or parts[4] != "aws4_request":
        message = "Credential must have the form <access key id>/<date>/<region>/<service>/aws4_request"
        raise IncompleteSignature(message)
    return Scope(*parts[:4]), tuple(found["signed"].lower().split(";")), found["signature"]


def _read_stamp(text: str | None) -> datetime:
    if text is None:
        message = "Authorization header requires existence of an 'X-Amz-Date' header"
        raise IncompleteSignature(message)
    wrong = f"Date must be in ISO-8601 'basic format' (20260131T235959Z). Got {text!r}"
    if _BASIC.fullmatch(text) is None:
        raise IncompleteSignature(wrong)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise IncompleteSignature(wrong) from error


def _check_signed(signed: tuple[str, ...], headers: Mapping[str, str]) -> None:
    for name in _MUST_BE_SIGNED:
        if (name in headers or name == "host") and name not in signed:
            message = f"{name!r} must be a 'SignedHeader' in the Authorization header"
            raise IncompleteSignature(message)
    for name in signed:
        if name not in headers:
            message = f"Header {name!r} is signed but was not sent"
            raise IncompleteSignature(message)


def _check_scope(scope: Scope, moment: str) -> None:
    if scope.service not in SERVICES:
        message = f"Credential should be scoped to correct service: {' or '.join(map(repr, SERVICES))}, not {scope.service!r}"
        raise WrongSignature(message)
    date = moment.partition("T")[0]
    if scope.date != date:
        message = (
            f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: {scope.date!r} != {date}"
        )
        raise WrongSignature(message)


def _check_skew(stamp: datetime, now: datetime) -> None:
    minutes = int(SKEW.total_seconds() // 60)
    if stamp < now - SKEW:
        message = f"Signature expired: {stamp:{_STAMP}} is now earlier than {now - SKEW:{_STAMP}} ({now:{_STAMP}} - {minutes} min.)"
        raise WrongSignature(message)
    if stamp > now + SKEW:
        message = f"Signature not yet current: {stamp:{_STAMP}} is still later than {now + SKEW:{_STAMP}} ({now:{_STAMP}} + {minutes} min.)"
        raise WrongSignature(message)


def _expected(request: SignedRequest, scope: Scope, signed: tuple[str, ...], moment: str, secret: str) -> str:
    body = hashlib.sha256(request.body).hexdigest()
    declared = request.headers.get("x-amz-content-sha256")
    if declared is not None and declared != body:
        message = "The value of x-amz-content-sha256 is not the SHA-256 of the request body"
        raise WrongSignature(message)
    names = sorted(set(signed))
    canonical = "\n".join(
        (
            request.method.upper(),
            _canonical_path(request.path),
            "&".join(f"{name}={value}" for name, value in _pairs(request.query)),
            *(f"{name}:{' '.join(request.headers[name].split())}" for name in names),
            "",
            ";".join(names),
            body,
        )
    )
    text = f"{_ALGORITHM}\n{moment}\n{scope.date}/{scope.region}/{scope.service}/aws4_request\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    return hmac.digest(_signing_key(secret, scope.date, scope.region, scope.service), text.encode(), "sha256").hex()


def _canonical_path(path: str) -> str:
    """Without empty and dotted segments, and percent-encoded once more: SageMaker's clients sign the path as it is sent."""
    return "/" if path in {"", "/"} else quote(normalize_url_path(path), safe="/~")


def _pairs(query: str) -> list[tuple[str, str]]:
    pairs = (pair.partition("=") for pair in query.split("&")) if query else ()
    return sorted((name, value) for name, _, value in pairs)


@lru_cache(maxsize=256)
def _signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    """Good for one day, one region and one service; a client uses the same all the time."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
