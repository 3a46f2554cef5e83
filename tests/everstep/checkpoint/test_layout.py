"""What a shard says of itself, and the metadata as JSON, for any state; and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from everstep.checkpoint.contents import Chunk, Contents, TensorContent
from everstep.checkpoint.layout import ALIGN, FOOTER_BYTES, Layout, read_tail, tail_length
from everstep.checkpoint.leaves import flattened
from everstep.checkpoint.torch_parts import over, span_of, strides_of
from everstep.errors import CheckpointMismatch, CheckpointUnreadable

NAMES = st.text(min_size=1, max_size=12)
OFFSETS = st.none() | st.lists(st.integers(0, 99), max_size=3).map(tuple)
ITEMS = st.lists(st.tuples(NAMES, OFFSETS, st.integers(0, 500)), max_size=12, unique_by=lambda item: item[:2])


@given(ITEMS, st.booleans())
def test_a_layout_is_read_back_from_the_end_of_its_shard(items, has_digests):
    planned = Layout.of(items, has_digests=has_digests)
    shard = bytes(planned.nbytes) + planned.digested_tail(lambda start, end: f"{start:016x}{end:016x}")
    assert len(shard) == planned.size
    layout = read_tail(shard[-tail_length(shard[-FOOTER_BYTES:]) :], len(shard))
    assert [(one.key, one.start, one.nbytes) for one in layout.items] == [(one.key, one.start, one.nbytes) for one in planned.items]
    for item in layout.items:
        assert item.digest == (f"{item.start:016x}{item.start + item.nbytes:016x}" if has_digests else "")


@given(ITEMS)
def test_items_are_aligned_and_with_the_gaps_make_up_all_bytes(items):
    layout = Layout.of(items)
    covered = bytearray(layout.nbytes)
    for item in layout.items:
        assert item.start % ALIGN == 0
        covered[item.start : item.start + item.nbytes] = b"\1" * item.nbytes
    for start, end in layout.gaps():
        assert not any(covered[start:end])
        covered[start:end] = b"\1" * (end - start)
    assert all(covered)


@given(ITEMS.filter(bool), st.data())
def test_a_shard_that_is_cut_short_has_no_layout(items, data):
    layout = Layout.of(items)
    shard = bytes(layout.nbytes) + layout.tail
    cut = shard[: data.draw(st.integers(0, len(shard) - 1))]
    with pytest.raises(CheckpointUnreadable):
        read_tail(cut[-tail_length(cut[-FOOTER_BYTES:]) :], len(cut))


def test_a_layout_that_names_bytes_outside_of_its_shard_is_refused():
    layout = Layout.of([("w", (0,), 1000)])
    with pytest.raises(CheckpointUnreadable, match="bytes that it does not have"):
        read_tail(layout.tail, len(layout.tail) + 500)


@given(st.dictionaries(NAMES, st.integers(1, 5)), st.dictionaries(NAMES, st.integers(0, 3)))
def test_the_metadata_is_the_same_after_json(tensors, blobs):
    contents = Contents(
        4,
        {name: TensorContent("bfloat16", (rows, 2), (Chunk((0, 0), (rows, 2), rows % 4),)) for name, rows in tensors.items()},
        blobs,
        {name: ("a", 0, name) for name in tensors},
    )
    assert Contents.from_json(contents.to_json()) == contents


@pytest.mark.parametrize("text", [b"\x80\x05pickle", b"{}", b"[]", b'{"world_size": 1, "tensors": [], "blobs": {}, "paths": {}}'])
def test_metadata_of_another_program_is_not_readable_and_never_unpickled(text):
    with pytest.raises(CheckpointUnreadable, match="not written by Everstep's library"):
        Contents.from_json(text)


def test_a_path_that_json_would_change_is_refused_when_saving():
    with pytest.raises(CheckpointMismatch, match="neither a string nor a number"):
        Contents(1, {}, {"x": 0}, {"x": ("a", True)}).to_json()


@given(st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple), st.data())
def test_a_region_is_found_in_the_bytes_of_its_span_alone(sizes, data):
    offsets = tuple(data.draw(st.integers(0, size - 1)) for size in sizes)
    lengths = tuple(data.draw(st.integers(1, size - offset)) for size, offset in zip(sizes, offsets, strict=True))
    whole = torch.arange(math.prod(sizes)).view(sizes)
    expected = whole
    for axis, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        expected = expected.narrow(axis, offset, length)
    start, end = span_of(sizes, offsets, lengths)
    span = memoryview(bytearray(whole.reshape(-1)[start:end].numpy().tobytes()))
    assert torch.equal(over(span, 0, (end - start,), torch.int64).as_strided(lengths, strides_of(sizes)), expected)


LEAVES = st.integers() | st.text() | st.just(torch.ones(2)) | st.tuples(st.integers(), st.just(torch.ones(1)))
STATES = st.recursive(
    st.dictionaries(st.text("abc", min_size=1), LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.text("xyz", min_size=1), inner | LEAVES | st.lists(inner | LEAVES, max_size=3), max_size=3),
    max_leaves=12,
)


@given(STATES)
def test_leaves_have_the_names_and_the_order_that_dcp_gives_them(state):
    try:
        expected, _ = flatten_state_dict(state)
    except ValueError:
        return  # two leaves of one name: DCP refuses the state when it plans
    assert list(flattened(state)) == list(expected)
    assert all(flattened(state)[name] is value for name, value in expected.items())
