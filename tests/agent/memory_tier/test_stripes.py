"""Stripes of a large replica: whatever its size, the streams carry every byte once, and what they say of themselves is read as it was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory_tier.stripes import LEAST_BYTES, MOST_BYTES, MOST_STREAMS, Attempt, Stream, alone

PUSHES = st.builds(
    Attempt,
    st.text("0123456789abcdef", min_size=1, max_size=32),
    st.integers(1, MOST_STREAMS),
    st.integers(LEAST_BYTES, MOST_BYTES),
)


@given(push=PUSHES, size=st.integers(0, 200 * LEAST_BYTES))
def test_the_streams_of_a_push_carry_every_byte_once_and_in_order(push, size):
    streams = [Stream(push, number) for number in range(push.streams)]
    spans = sorted(span for stream in streams for span in stream.spans(size))
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == size
    assert all(list(stream.spans(size)) == sorted(stream.spans(size)) for stream in streams)
    assert sum(stream.nbytes(size) for stream in streams) == size


@given(push=PUSHES, data=st.data())
def test_what_a_stream_says_of_itself_is_read_back_as_it_was(push, data):
    stream = Stream(push, data.draw(st.integers(0, push.streams - 1)))
    assert Stream.told(str(stream)) == stream


@pytest.mark.parametrize("size", [0, 1, MOST_BYTES, MOST_BYTES + 1, 3 * MOST_BYTES])
def test_a_body_that_travels_alone_is_all_of_its_shard(size):
    assert alone().nbytes(size) == size
    assert alone().attempt != alone().attempt


@pytest.mark.parametrize(
    "text",
    [
        "",
        "push=ab, stream=2/2, bytes=4194304",
        "push=ab, stream=0/0, bytes=4194304",
        "push=ab, stream=0/17, bytes=4194304",
        "push=ab, stream=0/2, bytes=1024",
        "push=ab, stream=0/2, bytes=99999999",
        "push=, stream=0/2, bytes=4194304",
        "push=xyz, stream=0/2, bytes=4194304",
        "push=ab, stream=-1/2, bytes=4194304",
        "push=ab,stream=0/2,bytes=4194304",
        "push=ab, stream=0/2, bytes=4194304, more",
    ],
)
def test_what_says_no_stream_is_refused_by_the_name_of_its_header(text):
    with pytest.raises(ValueError, match="Everstep-Stripes"):
        Stream.told(text)
