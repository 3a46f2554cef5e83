"""The model's patterns, read as Python's: as strict as Java's, and never slow."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.aws.patterns import compile_pattern, is_match
from api.aws.schema import sagemaker
from api.aws.table.sagemaker import SAGEMAKER

LONGEST = 2048
UNITS = ("a", "0", "-", ".", "a-", "a.", "0.", "a/", "/", "arn:aws:", " ", "A")
ENDS = ("", "!", "\n", "-", "é")


def strings(shape: Any, seen: set[str]) -> Iterator[Any]:
    if shape.type_name == "structure" and shape.name not in seen:
        seen.add(shape.name)
        for member in shape.members.values():
            yield from strings(member, seen)
    elif shape.type_name == "list":
        yield from strings(shape.member, seen)
    elif shape.type_name == "map":
        yield from strings(shape.key, seen)
        yield from strings(shape.value, seen)
    elif shape.type_name == "string" and "pattern" in shape.metadata:
        yield shape


def patterns() -> dict[str, int]:
    """Every pattern that a request can meet, with the longest text that it is matched against."""
    longest: dict[str, int] = {}
    seen: set[str] = set()
    for name in set(SAGEMAKER) & set(sagemaker().operation_names):
        for shape in strings(sagemaker().operation_model(name).input_shape, seen):
            pattern = shape.metadata["pattern"]
            longest[pattern] = max(longest.get(pattern, 0), shape.metadata.get("max", LONGEST))
    return longest


@pytest.mark.parametrize("pattern, longest", sorted(patterns().items()))
@pytest.mark.timeout(20)
def test_no_pattern_takes_long_whatever_text_it_meets(pattern: str, longest: int) -> None:
    began = time.process_time()
    for unit in UNITS:
        for end in ENDS:
            is_match(pattern, (unit * longest)[: min(longest, LONGEST) - len(end)] + end)
    assert time.process_time() - began < 5.0


@given(st.text(alphabet="ab0-!", max_size=12))
def test_a_repetition_of_repetitions_means_what_it_meant(text: str) -> None:
    pattern = "[a-z0-9]([-a-z0-9]*[a-z0-9]){0,39}?"
    assert compile_pattern(pattern).pattern != pattern
    assert is_match(pattern, text) == (re.fullmatch(pattern, text) is not None)


def test_a_repetition_that_is_more_than_its_turn_is_left_alone() -> None:
    assert compile_pattern("([a-z]*[0-9]){0,3}").pattern == "([a-z]*[0-9]){0,3}"
