"""What members lay comes out as it went in, however much or little of it is alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.gathered import pack, unpack

_SCALARS = st.none() | st.text(max_size=5) | st.integers(-5, 5)
_VALUES = _SCALARS | st.lists(_SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), _SCALARS, max_size=2)


@st.composite
def _tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    keys = draw(st.lists(st.text(max_size=4), unique=True, max_size=4))
    few = draw(st.lists(_VALUES, min_size=1, max_size=3))
    return draw(st.lists(st.fixed_dictionaries({key: st.sampled_from(few) for key in keys}), max_size=8))


@given(_tables())
def test_rows_come_back_as_they_were_laid(rows: list[dict[str, Any]]) -> None:
    assert unpack(pack(rows)) == rows


def test_what_all_say_alike_is_told_once() -> None:
    alike = [{"structure": "6f" * 512, "port": port} for port in range(200)]
    assert len(pack(alike)) < len(json.dumps(alike[0]))


def test_members_that_speak_of_different_things_are_not_mixed_up() -> None:
    with pytest.raises(ValueError, match="different keys"):
        pack([{"a": 1}, {"b": 1}])


@pytest.mark.parametrize("nonsense", [b"", b"not packed", pack([])[:-3]])
def test_what_is_not_packed_is_told_as_such(nonsense: bytes) -> None:
    with pytest.raises(ValueError, match="not what members have laid"):
        unpack(nonsense)
