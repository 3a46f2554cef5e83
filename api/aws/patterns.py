r"""The model's patterns are Java's; this reads them as Python's.

Two differences matter: Java's ``\w \d \s`` are ASCII, and it has Unicode classes (``\p{L}``). A model pattern holds for the whole string.

A pattern may repeat what repeats itself, ``([-a-z0-9]*[a-z0-9]){0,39}``: Python would try every way to divide a text among the repetitions, for years,
and holding the interpreter's lock, so that one request would stop the server. Such a repetition says no more than one of its turns, and is read as that.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache

_CLASS = re.compile(r"\\p\{(\w+)\}")
_NESTED = re.compile(r"\(\[(?P<any>[^\]\\]*)\]\*\[(?P<last>[^\]\\]*)\]\)\{0,\d+\}\??")
"""``(A*B){0,n}``. Where B is a part of A this is ``(A*B)?``: turns that follow each other are one turn."""
_POSIX = {"Alnum": "a-zA-Z0-9", "Alpha": "a-zA-Z", "Digit": "0-9", "Lower": "a-z", "Upper": "A-Z"}


def is_match(pattern: str, text: str) -> bool:
    """Whether the whole text matches. A pattern that Python cannot read holds for every text: refusing valid input would be worse."""
    compiled = compile_pattern(pattern)
    return compiled is None or compiled.fullmatch(text) is not None


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """The pattern in Python's dialect, or None if it has no equivalent."""
    try:
        return re.compile(_CLASS.sub(lambda found: _members(found[1]), _NESTED.sub(_one_turn, pattern)), re.ASCII)
    except re.error:
        return None


def _one_turn(found: re.Match[str]) -> str:
    return f"([{found['any']}]*[{found['last']}])?" if found["last"] in found["any"] else found[0]


def _members(name: str) -> str:
    """What a Unicode class holds, as ranges to stand inside brackets."""
    if name in _POSIX:
        return _POSIX[name]
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _ranges(name))


@lru_cache(maxsize=16)
def _ranges(category: str) -> tuple[tuple[int, int], ...]:
    """The code points whose category starts with the given letters, as closed ranges."""
    ranges: list[tuple[int, int]] = []
    first = None
    for point in range(sys.maxunicode + 2):
        is_member = point <= sys.maxunicode and unicodedata.category(chr(point)).startswith(category)
        if is_member and first is None:
            first = point
        elif not is_member and first is not None:
            ranges.append((first, point - 1))
            first = None
    return tuple(ranges)
