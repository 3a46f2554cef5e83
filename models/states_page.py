"""Writes ``docs/states.md``: every state machine as a diagram.

``python -m models.states_page`` writes it; with ``--check`` it only says whether it is fresh, by its exit code.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from models.access.states import KEY
from models.alarm.states import ALARM
from models.checkpoint.states import COPY, EXPORT, STEP
from models.cluster.states import CLUSTER, GROUP
from models.condition.states import CONDITION
from models.directive.states import DIRECTIVE
from models.fault.states import FAULT
from models.health.states import CHECK
from models.image.states import RELEASE
from models.job.states import JOB, PROCESS
from models.machine import Machine
from models.node.states import NODE
from models.operation.states import OPERATION
from models.revised import REVISED
from models.software.states import UPDATE
from models.spot.states import NOTICE
from models.volume.states import ATTACHMENT

MACHINES: tuple[Machine[Any], ...] = (
    CLUSTER,
    GROUP,
    NODE,
    ATTACHMENT,
    JOB,
    PROCESS,
    DIRECTIVE,
    OPERATION,
    KEY,
    REVISED,
    RELEASE,
    UPDATE,
    ALARM,
    CHECK,
    CONDITION,
    FAULT,
    NOTICE,
    STEP,
    COPY,
    EXPORT,
)
PAGE = Path(__file__).parent.parent / "docs" / "states.md"

_HEAD = """\
# States

Written by `python -m models.states_page` from the tables in `models/*/states.py`; do not edit. Each noun has one table of legal moves, and
`models/move.py` is the only place that makes one. Whether a step is durable, or a cluster degraded, is a query and never a state.
"""


def page() -> str:
    return "\n".join([_HEAD, *(_section(machine) for machine in MACHINES)])


def main(arguments: list[str]) -> int:
    """``[--check] [FILE]``: the exit code, 1 for a page that is not fresh."""
    files = [argument for argument in arguments if argument != "--check"]
    target = Path(files[0]) if files else PAGE
    if "--check" not in arguments:
        target.write_text(page(), encoding="utf-8")
        return 0
    is_fresh = target.is_file() and target.read_text(encoding="utf-8") == page()
    sys.stdout.write("" if is_fresh else f"{target} is stale: run python -m models.states_page\n")
    return 0 if is_fresh else 1


def _section(machine: Machine[StrEnum]) -> str:
    ends = ", ".join(str(state) for state in machine.states if machine.is_terminal(state))
    return f"""\
## {machine.noun}

Starts {machine.initial}; ends {ends}.

```mermaid
{machine.mermaid()}
```
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
