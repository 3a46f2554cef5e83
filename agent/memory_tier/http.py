"""The grammar of requests at the door: HTTP/1.1 as strict as framing needs it (RFC 9112), and not a word more than the door speaks.

Two readers of one connection must never disagree on where a request ends. So: one ``Content-Length`` of digits, no transfer coding, no folded
lines, no bare line feeds, no spaces before a colon; whatever else is refused and the connection closed. Nothing here touches a socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

LONGEST_HEAD = 64 << 10
"""Bytes of a request's line and headers. A seal with a foreign client's header in it is below 4 KiB."""
_MOST_HEADERS = 100
_LONGEST_LENGTH = 18
"""Digits of a Content-Length: below 2**63."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"[\x21-\x7e]+")
_VERSION = re.compile(r"HTTP/([0-9])\.([0-9])")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_BAD = HTTPStatus.BAD_REQUEST
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


class Refusal(Exception):
    """What is wrong with a request, in words for its sender."""

    def __init__(self, status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Request:
    """``parts`` are the path's segments, percent-decoded; ``headers`` have lower-case names. ``length`` is that of the body, in bytes."""

    method: str
    parts: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int = 0
    keeps_alive: bool = True
    expects_continue: bool = False


def parse(head: bytes) -> Request:
    """Reads a request's line and headers, without the empty line that ends them.

    Raises:
        Refusal: where the next request would begin is not known then; the connection is to be closed.
    """
    if b"\x00" in head or head.count(b"\n") != head.count(b"\r\n"):
        raise Refusal(_BAD, "a line must end with CR LF, and hold no NUL")
    line, *fields = head.decode("latin-1").split("\r\n")
    method, target, minor = _request_line(line)
    headers = _headers(fields)
    if minor and "host" not in headers:
        raise Refusal(_BAD, "the Host header is missing")
    parts, query = _target(target)
    return Request(
        method=method,
        parts=parts,
        query=query,
        headers=headers,
        length=_length(method, headers),
        keeps_alive=_keeps_alive(headers, minor),
        expects_continue=_expects_continue(headers),
    )


def byte_range(headers: Mapping[str, str], size: int) -> tuple[int, int] | None:
    """The half-open range of bytes that a request asks for, or None for all. Several ranges, or other units, are answered with all (RFC 9110 §14.2).

    Raises:
        Refusal: no byte of it exists.
    """
    asked = _RANGE.fullmatch(headers.get("range", "").strip())
    if asked is None or asked[0] == "bytes=-":
        return None
    first, last = asked[1], asked[2]
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= end:
        why = f"bytes {first}-{last} are not among the {size} bytes of this shard"
        raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, why, {"Content-Range": f"bytes */{size}"})
    return start, end


def response_head(status: HTTPStatus, headers: Mapping[str, str], length: int, *, keeps_alive: bool) -> bytes:
    """Raises ValueError: a header's value would end its line."""
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Length: {length}"]
    for name, value in headers.items():
        if not _VALUE.fullmatch(value):
            message = f"the value of {name} is not one line of Latin-1"
            raise ValueError(message)
        lines.append(f"{name}: {value}")
    if not keeps_alive:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _request_line(line: str) -> tuple[str, str, int]:
    words = line.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):  # noqa: PLR2004  (method, target, version)
        raise Refusal(_BAD, "the request's line must be METHOD TARGET VERSION")
    method, target, version = words
    found = _VERSION.fullmatch(version)
    if found is None:
        raise Refusal(_BAD, "the request's line must end with its version")
    if found[1] != "1" or found[2] not in "01":
        raise Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is spoken here")
    if method not in _METHODS:
        raise Refusal(HTTPStatus.NOT_IMPLEMENTED, f"{method} is not a method of this door")
    return method, target, int(found[2])


def _headers(fields: list[str]) -> dict[str, str]:
    if len(fields) > _MOST_HEADERS:
        raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {_MOST_HEADERS} headers")
    found: dict[str, str] = {}
    for one in fields:
        name, colon, value = one.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Refusal(_BAD, "a header must be NAME: VALUE on one line")
        name = name.lower()
        if name in found and name in {
            "content-length",
            "host",
            "transfer-encoding",
            "authorization",
            "everstep-seal",
            "everstep-stripes",
        }:
            raise Refusal(_BAD, f"the header {name} is there twice")
        found[name] = value.strip(" \t") if name not in found else f"{found[name]}, {value.strip()}"
    return found


def _target(target: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Of the origin form, or of the absolute form that a client speaks to a proxy: which host it names is not asked."""
    if target.lower().startswith("http://"):
        target = "/" + target[len("http://") :].partition("/")[2]
    if not target.startswith("/") or "#" in target:
        raise Refusal(_BAD, "the request's target must be a path")
    path, _, query = target.partition("?")
    parts = tuple(_decoded(part) for part in path[1:].split("/"))
    if any(part in {"", ".", ".."} or "/" in part for part in parts):
        raise Refusal(_BAD, "the path has an empty segment, a dot segment or an encoded slash")
    pairs = [one.partition("=") for one in query.split("&") if one]
    asked = {_decoded(name): _decoded(value) for name, _, value in pairs}
    if len(asked) != len(pairs):
        raise Refusal(_BAD, "a parameter is there twice")
    return parts, asked


def _decoded(text: str) -> str:
    if _ESCAPE.search(text):
        raise Refusal(_BAD, "a percent sign must be followed by two hexadecimal digits")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise Refusal(_BAD, "the path is not UTF-8") from error
    if any(ord(one) < 0x20 or ord(one) == 0x7F for one in decoded):  # noqa: PLR2004  (control characters)
        raise Refusal(_BAD, "the path holds a control character")
    return decoded


def _length(method: str, headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Refusal(HTTPStatus.LENGTH_REQUIRED, "send the body with its Content-Length, not in chunks")
    told = headers.get("content-length")
    if told is None:
        if method in {"POST", "PUT"}:
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        return 0
    if not (told.isascii() and told.isdigit()):
        raise Refusal(_BAD, "Content-Length must be digits")
    if len(told) > _LONGEST_LENGTH:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of {told[:_LONGEST_LENGTH]}… bytes")
    return int(told)


def _keeps_alive(headers: Mapping[str, str], minor: int) -> bool:
    wishes = {one.strip().lower() for one in headers.get("connection", "").split(",")}
    return "close" not in wishes and (bool(minor) or "keep-alive" in wishes)


def _expects_continue(headers: Mapping[str, str]) -> bool:
    expected = headers.get("expect")
    if expected is None:
        return False
    if expected.lower() != "100-continue":
        raise Refusal(HTTPStatus.EXPECTATION_FAILED, f"only 100-continue can be expected here, not {expected[:80]}")
    return True
