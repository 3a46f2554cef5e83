"""Tests that the default suite leaves out are not run for weeks: at least they could be."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.architecture import sources

_MARKS = ("slow", "bench", "store", "clients")
_MARKED = re.compile(rf"mark\.({'|'.join(_MARKS)})\b")


def test_every_test_that_is_left_out_by_default_has_its_fixtures() -> None:
    """None of them is run: pytest plans them, and so finds fixtures that are not there any more."""
    files = [
        path
        for path in sources.modules("tests")
        if _MARKED.search(path.read_text(encoding="utf-8")) and path.name.startswith("test_")
    ]
    assert files
    plan = [
        sys.executable,
        "-m",
        "pytest",
        "--setup-plan",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        " or ".join(_MARKS),
        *map(str, files),
    ]
    ended = subprocess.run(plan, cwd=sources.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:]
