"""Writes ``docs/states.md``: every state machine as a diagram and as a table.

``python -m models.states_page`` writes it; with ``--check`` it only says whether it is fresh, by its exit code.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from models.access.states import KEY
from models.cluster.states import CLUSTER, GROUP
from models.directive.states import DIRECTIVE
from models.job.states import JOB, PROCESS
from models.machine import Machine
from models.node.states import NODE
from models.operation.states import OPERATION

MACHINES: tuple[Machine[Any], ...] = (CLUSTER, GROUP, NODE, JOB, PROCESS, DIRECTIVE, OPERATION, KEY)
PAGE = Path(__file__).parent.parent / "docs" / "states.md"

_HEAD = """\
# States

Written by `python -m models.states_page` from the tables in `models/*/states.py`; do not edit. Each noun has one table of legal moves, and
`models/move.py` is the only place that makes one. Whether a step is durable, or a cluster degraded, is a query and never a state.
"""


def page() -> str:
    return "\n".join([_HEAD, *(_section(machine) for machine in MACHINES)])


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        is_fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        sys.stdout.write("" if is_fresh else f"{PAGE.name} is stale: run python -m models.states_page\n")
        return 0 if is_fresh else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def _section(machine: Machine[StrEnum]) -> str:
    moves = [
        f"| {old} | {new} | {machine.event(old, new)} |"
        for old in machine.states
        for new in machine.states
        if new in machine.next(old)
    ]
    return "\n".join(
        [
            f"## {machine.noun}",
            "",
            f"Starts {machine.initial}; ends {_listed(state for state in machine.states if machine.is_terminal(state))}.",
            "",
            "```mermaid",
            machine.mermaid(),
            "```",
            "",
            "| from | to | when |",
            "|---|---|---|",
            *moves,
            "",
        ]
    )


def _listed(states: Any) -> str:
    return ", ".join(str(state) for state in states)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
