"""What all measurements of the runtime print alike: the machine, medians with their ranges, goals and ratios; and the JSON file of a run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Read at the beginning of a run: the load is what others do on this machine meanwhile."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def told(found: dict[str, Any]) -> str:
    """The environment as one line."""
    return (
        f"{found['processors']} processors, {found['memory_gib']} GiB, Linux {found['kernel']}, Python {found['python']}, "
        f"torch {found['torch']}, load {found['load']} at the beginning"
    )


def spread(seconds: Sequence[float]) -> str:
    """Median and range of seconds."""
    return f"{statistics.median(seconds):8.3f}   {min(seconds):.3f}–{max(seconds):.3f} ({len(seconds)})" if seconds else "       –"


def at_most(median: float, goal: float) -> str:
    return f"goal ≤ {goal:g}: {'met' if median <= goal else 'NOT met'}"


def times_faster(ours: Sequence[float], theirs: Sequence[float], goal: float) -> str:
    """How many of our medians theirs takes."""
    if not ours or not theirs:
        return "no ratio: one of the two has no figure"
    ratio = statistics.median(theirs) / statistics.median(ours)
    return f"{ratio:.1f} times as long; goal ≥ {goal:g}: {'met' if ratio >= goal else 'NOT met'}"


def parser(words: str | None) -> argparse.ArgumentParser:
    """With ``--quick`` (few repetitions) and ``--json FILE``, as each of them has it."""
    made = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="few repetitions: less than a minute")
    made.add_argument("--json", type=Path, help="write what was measured to this file")
    return made


def options_of(words: str | None, numbers: dict[str, int], parts: Sequence[str], quick: Sequence[str]) -> argparse.Namespace:
    """As ``parser``, with ``--NAME`` for each of the numbers and ``--parts`` as a list: ``quick`` are those of ``--quick``, if none are named."""
    made = parser(words)
    for name, default in numbers.items():
        made.add_argument(f"--{name}", type=int, default=default)
    made.add_argument("--parts", default="", help=f"of {','.join(parts)}")
    options = made.parse_args()
    options.parts = options.parts.split(",") if options.parts else list(quick if options.quick else parts)
    if unknown := set(options.parts) - set(parts):
        made.error(f"--parts: {', '.join(sorted(unknown))}: not of {', '.join(parts)}")
    return options


def options_of_ranks(
    words: str | None, ranks: Sequence[int], quick: Sequence[int], **counts: tuple[int, int]
) -> argparse.Namespace:
    """As ``parser``, with ``--ranks`` as a list, and ``--NAME`` for each of the counts: how many, and how many with ``--quick``."""
    made = parser(words)
    made.add_argument("--ranks", default="", help="numbers, with commas between")
    for name, (many, few) in counts.items():
        made.add_argument(f"--{name}", type=int, help=f"{many}, and {few} with --quick, unless said")
    options = made.parse_args()
    options.ranks = [int(one) for one in options.ranks.split(",")] if options.ranks else list(quick if options.quick else ranks)
    for name, (many, few) in counts.items():
        setattr(options, name, getattr(options, name) or (few if options.quick else many))
    return options


def write(options: argparse.Namespace, found: dict[str, Any]) -> None:
    if options.json:
        options.json.write_text(json.dumps(found, indent=2, default=str))
