from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory_tier.http import Refusal, Request, byte_range, parse, response_head

TOKENS = st.text("abcdefghijklmnopqrstuvwxyzABC0123456789-_", min_size=1, max_size=12)
VALUES = st.text([chr(code) for code in range(0x21, 0x7F)], max_size=20)


def head(line: str = "GET /a HTTP/1.1", *headers: str) -> bytes:
    return "\r\n".join([line, "Host: x", *headers]).encode("latin-1")


def outcome(call: Callable[[], Any]) -> Any:
    """What it returns, or the refusal that it raises; any other error is the test's."""
    try:
        return call()
    except Refusal as refusal:
        return refusal


def refused(told: bytes) -> int:
    with pytest.raises(Refusal) as found:
        parse(told)
    assert found.value.why
    return found.value.status.value


@given(st.lists(st.text(min_size=1).filter(lambda part: "/" not in part), min_size=1, max_size=6), st.dictionaries(TOKENS, VALUES))
def test_what_is_percent_encoded_comes_out_as_it_went_in(parts: list[str], query: dict[str, str]) -> None:
    def encoded(text: str) -> str:
        return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))

    asked = "/" + "/".join(map(encoded, parts)) + "?" + "&".join(f"{encoded(k)}={encoded(v)}" for k, v in query.items())
    is_odd = any(part in {".", ".."} or any(ord(one) < 32 or ord(one) == 127 for one in part) for part in parts)
    found = outcome(lambda: parse(head(f"GET {asked} HTTP/1.1")))
    if is_odd:
        assert found.status is HTTPStatus.BAD_REQUEST
    else:
        assert (found.parts, found.query) == (tuple(parts), query)


@given(st.binary(max_size=300))
def test_no_bytes_make_the_parser_fail_otherwise_than_in_words(noise: bytes) -> None:
    for told in (noise, b"GET / HTTP/1.1\r\nHost: x\r\n" + noise, b"GET /" + noise + b" HTTP/1.1\r\nHost: x"):
        found = outcome(lambda told=told: parse(told))
        assert isinstance(found, Request) or (400 <= found.status.value < 600 and found.why)


@given(st.integers(0, 2**59))
def test_a_length_is_read_beyond_32_bits(length: int) -> None:
    assert parse(head("POST /a HTTP/1.1", f"Content-Length: {length}")).length == length


@pytest.mark.parametrize(
    "length",
    ["-1", "+1", "0x10", "1 2", "1,1", "1, 1", "1.0", "", "٣", "\xb2", "1_0", "ten"],
)
def test_a_length_that_is_not_digits_is_refused(length: str) -> None:
    told = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: " + length.encode("utf-8")
    assert refused(told) == 400


def test_two_lengths_are_refused_even_when_they_agree() -> None:
    assert refused(head("POST /a HTTP/1.1", "Content-Length: 3", "content-length: 3")) == 400


def test_a_length_of_more_than_63_bits_is_too_large() -> None:
    assert refused(head("POST /a HTTP/1.1", "Content-Length: " + "9" * 19)) == 413


@pytest.mark.parametrize("coding", ["chunked", "identity", "gzip, chunked", "xchunked"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_in_chunks_is_refused_whatever_the_length_says(method: str, coding: str) -> None:
    assert refused(head(f"{method} /a HTTP/1.1", f"Transfer-Encoding: {coding}", "Content-Length: 3")) == 411


def test_a_body_without_a_length_is_refused() -> None:
    assert refused(head("POST /a HTTP/1.1")) == 411


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\r\n",
        b"GET",
        b"GET /a",
        b"GET  /a HTTP/1.1\r\nHost: x",
        b" GET /a HTTP/1.1\r\nHost: x",
        b"GET /a HTTP/1.1 \r\nHost: x",
        b"GET\t/a\tHTTP/1.1\r\nHost: x",
        b"GET /a HTTP/1.1\nHost: x",
        b"GET /a HTTP/1.1\r\nHost: x\nX: y",
        b"GET /a HTTP/1.1\r\nHost : x",
        b"GET /a HTTP/1.1\r\n Host: x",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX: a\r\n b",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX",
        b"GET /a HTTP/1.1\r\nHost: x\r\n: y",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX: a\x00b",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX: a\rb",
        b"GET /a HTTP/1.1",
        b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y",
        b"GET a HTTP/1.1\r\nHost: x",
        b"GET /a#b HTTP/1.1\r\nHost: x",
        b"GET https://x/a HTTP/1.1\r\nHost: x",
        b"GET /a\xff HTTP/1.1\r\nHost: x",
        b"GET /%zz HTTP/1.1\r\nHost: x",
        b"GET /%4 HTTP/1.1\r\nHost: x",
        b"GET /%ff HTTP/1.1\r\nHost: x",
        b"GET /%00 HTTP/1.1\r\nHost: x",
        b"GET /a/../b HTTP/1.1\r\nHost: x",
        b"GET /a/%2e%2e/b HTTP/1.1\r\nHost: x",
        b"GET /a%2Fb HTTP/1.1\r\nHost: x",
        b"GET /a//b HTTP/1.1\r\nHost: x",
        b"GET /a?x=1&x=2 HTTP/1.1\r\nHost: x",
        b"GET /a http/1.1\r\nHost: x",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(told: bytes) -> None:
    assert refused(told) == 400


def test_other_versions_methods_and_expectations_have_answers_of_their_own() -> None:
    assert refused(head("GET /a HTTP/2.0")) == 505
    assert refused(head("GET /a HTTP/1.2")) == 505
    assert refused(head("BREW /a HTTP/1.1")) == 501
    assert refused(head("CONNECT /a HTTP/1.1")) == 501
    assert refused(head("POST /a HTTP/1.1", "Content-Length: 1", "Expect: 200-ok")) == 417
    assert refused(head("GET /a HTTP/1.1", *(f"X-{number}: y" for number in range(200)))) == 431


def test_the_absolute_form_that_a_client_speaks_to_a_proxy_is_understood() -> None:
    told = parse(head("GET http://ai-toolkit.svc:9200/v1/cp/namespaces/a?b=c HTTP/1.1"))
    assert (told.parts, told.query) == (("v1", "cp", "namespaces", "a"), {"b": "c"})


def test_a_connection_is_kept_as_the_version_and_the_client_say() -> None:
    assert parse(head()).keeps_alive
    assert not parse(head("GET /a HTTP/1.1", "Connection: x, Close")).keeps_alive
    assert not parse(b"GET /a HTTP/1.0").keeps_alive
    assert parse(b"GET /a HTTP/1.0\r\nConnection: keep-alive").keeps_alive


def test_a_header_that_comes_twice_is_joined_and_its_name_has_no_case() -> None:
    assert parse(head("GET /a HTTP/1.1", "X-One: a", "x-one: b ")).headers["x-one"] == "a, b"


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 2**40))
def test_a_range_is_a_part_of_the_shard_or_no_byte_exists(first: int, last: int, size: int) -> None:
    found = outcome(lambda: byte_range({"range": f"bytes={first}-{last}"}, size))
    if first >= size and last >= first:
        assert found.status.value == 416
        assert found.headers["Content-Range"] == f"bytes */{size}"
    else:
        assert found == (None if last < first else (first, min(size, last + 1)))


def test_open_ranges_and_what_is_no_single_range() -> None:
    assert byte_range({}, 10) is None
    assert byte_range({"range": "bytes=4-"}, 10) == (4, 10)
    assert byte_range({"range": "bytes=-4"}, 10) == (6, 10)
    assert byte_range({"range": "bytes=-40"}, 10) == (0, 10)
    assert byte_range({"range": "bytes=0-0"}, 1 << 40) == (0, 1)
    for odd in ("bytes=-", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b", "bytes=1-٣", "bytes"):
        assert byte_range({"range": odd}, 10) is None
    for none in ("bytes=10-", "bytes=-0", "bytes=99-100"):
        with pytest.raises(Refusal):
            byte_range({"range": none}, 10)


def test_a_value_with_a_line_break_never_becomes_two_headers() -> None:
    with pytest.raises(ValueError, match="one line"):
        response_head(HTTPStatus.OK, {"Shard-Meta": "a\r\nX: y"}, 0, keeps_alive=True)
