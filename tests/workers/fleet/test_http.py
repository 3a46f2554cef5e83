from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.fleet.http import Http, Unreachable, lines, read_request


def reader_of(*parts: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    for part in parts:
        reader.feed_data(part)
    reader.feed_eof()
    return reader


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_lines_are_the_same_however_they_are_cut_into_chunks(told, data):
    body = b"".join(line + b"\n" for line in told)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=5)))
    parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def read() -> list[bytes]:
        chunks = [chunk(part) for part in parts if part]
        return [line async for line in lines(reader_of(*chunks, chunk(b"")))]

    assert asyncio.run(read()) == told


@pytest.mark.parametrize("head", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"])
def test_what_is_no_request_is_refused(head):
    async def read() -> Any:
        return await read_request(reader_of(head))

    with pytest.raises(ValueError, match=r"no request line|a body of -1 bytes"):
        asyncio.run(read())


async def served(answer: Callable[[int], bytes], asked: Callable[[Http], Any]) -> Any:
    """A server that answers the n-th request as it is told, and closes when that is nothing. It ends when its last connection does."""
    count, talking = 0, set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        with suppress(asyncio.IncompleteReadError):
            while await read_request(reader):
                count += 1
                told = answer(count)
                if not told:
                    break
                writer.write(told)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(lambda *ends: talking.add(asyncio.ensure_future(talk(*ends))), "127.0.0.1", 0)
    http = Http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", most=2)
    try:
        return await asked(http)
    finally:
        http.close()
        await asyncio.gather(*talking)
        server.close()


def plain(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_connection_is_kept_and_one_that_was_closed_meanwhile_is_replaced():
    async def asked(http: Http) -> list[Any]:
        return [(await http.post("/x", {})).json() for _ in range(3)]

    assert asyncio.run(served(lambda number: b"" if number == 2 else plain(b'{"n": %d}' % number), asked)) == [
        {"n": 1},
        {"n": 3},
        {"n": 4},
    ]


def test_a_chunked_answer_is_read_whole():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def asked(http: Http) -> Any:
        return (await http.post("/x", {})).json()

    assert asyncio.run(served(lambda _: head + chunk(b'{"a"') + chunk(b": 1}") + chunk(b""), asked)) == {"a": 1}


def test_nobody_and_nonsense_are_both_unreachable():
    with pytest.raises(Unreachable):
        asyncio.run(Http("http://127.0.0.1:9").post("/x", {}))

    async def asked(http: Http) -> Any:
        return await http.post("/x", {})

    with pytest.raises(Unreachable):
        asyncio.run(served(lambda _: b"HTTP/1.1 what\r\n\r\n", asked))
