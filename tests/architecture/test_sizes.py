"""Short rooms: functions of at most 40 lines, files of at most 400 (tests 600). What is longer is listed in ``waivers.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.architecture import sources

FUNCTION_LINES = 40
FILE_LINES = 400
TEST_FILE_LINES = 600
WAIVERS = tomllib.loads(Path(__file__).with_name("waivers.toml").read_text())


def test_functions_are_short() -> None:
    long = {
        f"{sources.name(path)}::{function}": node.end_lineno - node.lineno + 1
        for path in sources.modules(*sources.PACKAGES)
        for function, node in sources.functions(path)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert _beyond(long, WAIVERS["functions"]) == {}


def test_files_are_short() -> None:
    long = {}
    for path in sources.modules(*sources.PACKAGES, "tests", "benchmarks"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > (FILE_LINES if path.parts[len(sources.ROOT.parts)] in sources.PACKAGES else TEST_FILE_LINES):
            long[sources.name(path)] = lines
    assert _beyond(long, WAIVERS["files"]) == {}


def test_the_number_of_waivers_only_falls() -> None:
    given = len(WAIVERS["functions"]) + len(WAIVERS["files"])
    assert given == WAIVERS["most"], "lower `most` with the last waiver that went; never raise it"


def test_every_waiver_is_still_needed() -> None:
    present = {
        f"{sources.name(path)}::{function}"
        for path in sources.modules(*sources.PACKAGES)
        for function, _ in sources.functions(path)
    }
    assert set(WAIVERS["functions"]) <= present
    assert all((sources.ROOT / path).is_file() for path in WAIVERS["files"])


def _beyond(found: dict[str, int], waived: dict[str, int]) -> dict[str, int]:
    """What is longer than allowed, or than its waiver; and waivers that something shorter no longer needs, as 0."""
    return {thing: size for thing, size in found.items() if size > waived.get(thing, 0)} | {
        thing: 0 for thing in waived if thing not in found
    }
