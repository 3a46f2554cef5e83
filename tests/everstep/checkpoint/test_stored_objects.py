"""Objects of the store as they are read: what is shown while it comes is what has been filled, in order, from a folder and by ranges alike."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint import cold as cold_module
from everstep.checkpoint.cold import Cold

BODY = os.urandom(70_000)
KEY = "ns/shard"


@pytest.fixture(scope="module", params=["folder", "ranges"])
def opened(request, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("objects")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cold_module, "_CACHED", 1000)
        patched.setattr(cold_module, "_RANGE", 3000)
        cold = Cold(folder.as_uri() if request.param == "folder" else "memory:///")
        assert cold.is_local == (request.param == "folder")
        obstore.put(cold.store, KEY, BODY)
        found = cold.open(KEY)
        yield found
        found.close()


@settings(deadline=None, max_examples=60)
@given(edges=st.lists(st.integers(0, len(BODY)), min_size=2, max_size=9).map(sorted))
def test_buffers_are_filled_one_behind_the_other_and_shown_in_that_order(opened, edges):
    buffers = [memoryview(bytearray(end - start)) for start, end in pairwise(edges)]
    seen = bytearray()
    opened.read(edges[0], buffers, seen.extend)
    assert b"".join(buffers) == bytes(seen) == BODY[edges[0] : edges[-1]]


def test_an_object_that_is_shorter_than_was_said_is_an_error(opened):
    with pytest.raises(OSError, match=r"early|cannot be used"):
        opened.read(len(BODY) - 10, [memoryview(bytearray(20))])


def test_what_is_not_there_is_found_when_it_is_read(tmp_path):
    missing = Cold(tmp_path.as_uri()).open("no such object")
    with pytest.raises(FileNotFoundError):
        missing.read(0, [memoryview(bytearray(1))])


def test_a_file_stays_the_one_that_was_opened_until_it_is_closed(tmp_path):
    """A younger save of the step may take its place: bytes of two saves are never mixed."""
    cold = Cold(tmp_path.as_uri())
    obstore.put(cold.store, KEY, b"older")
    found, into = cold.open(KEY), memoryview(bytearray(5))
    found.read(0, [into])
    obstore.put(cold.store, KEY, b"newer")
    for expected in (b"older", b"newer"):
        found.read(0, [into])
        assert bytes(into) == expected
        found.close()


def test_a_closed_object_holds_no_descriptor(tmp_path):
    cold = Cold(tmp_path.as_uri())
    obstore.put(cold.store, KEY, BODY)
    found = cold.open(KEY)
    found.read(0, [memoryview(bytearray(10))])
    found.close()
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(tmp_path / KEY)]
